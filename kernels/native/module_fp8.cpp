// Python functions of fp8.
#include "module.h"

namespace kv {
namespace {

// Element type, code type, what shares a scale, whether it is a token's, UE8M0, given scales.
enum Extra { kSource, kTarget, kTokens, kHeads, kDims, kPerToken, kPower, kGiven, kNumExtra };

bool divides(i64 part, i64 whole) { return part > 0 && whole % part == 0; }

bool read_fp8(const i64* extra, const Call& call, Fp8& fp8) {
  const Plane& plane = call.plane;
  fp8 = {extra[kSource], extra[kTarget], extra[kTokens], extra[kHeads], extra[kDims],
         extra[kPerToken] != 0, extra[kPower] != 0, pointer<const float>(extra[kGiven])};
  constexpr i64 itemsizes[kNumSources] = {2, 2, 4};
  if (fp8.source < 0 || fp8.source >= kNumSources || fp8.target < 0 || fp8.target >= kNumTargets ||
      !divides(fp8.tokens, plane.block_size) || !divides(fp8.heads, plane.num_heads) ||
      !divides(fp8.dims, plane.head_dim) || itemsizes[fp8.source] != plane.itemsize ||
      (fp8.heads != 1 && (fp8.heads != plane.num_heads || fp8.dims != plane.head_dim)) ||
      (fp8.per_token ? fp8.tokens != 1 : fp8.tokens != plane.block_size) ||
      (!fp8.per_token && fp8.dims != 1 && fp8.dims != plane.head_dim)) {
    return refuse("no such element type, code type or scale");
  }
  return enough(call.scratch_nbytes, fp8_scratch(plane, call.num_threads), kSmallScratch);
}

PyObject* py_fp8_compress(PyObject*, PyObject* args) {
  Call call;
  i64 extra[kNumExtra];
  Fp8 fp8;
  if (!read_arguments(args, kNumExtra, call, extra) || !read_fp8(extra, call, fp8) ||
      !enough(call.row_nbytes, fp8_row_nbytes(call.plane, fp8), kSmallRows)) {
    return nullptr;
  }
  return run([&] { return fp8_compress(call, fp8), -1; });
}

PyObject* py_fp8_decompress(PyObject*, PyObject* args) {
  Call call;
  i64 extra[kNumExtra];
  Fp8 fp8;
  if (!read_arguments(args, kNumExtra, call, extra) || !read_fp8(extra, call, fp8)) return nullptr;
  return run([&] { return fp8_decompress(call, fp8); });
}

PyObject* py_fp8_scratch(PyObject*, PyObject* args) {
  i64 v[5];
  if (!read_integers(args, v, 5)) return nullptr;
  Plane plane{};
  plane.block_size = v[0], plane.num_heads = v[1], plane.head_dim = v[2], plane.itemsize = v[3];
  return PyLong_FromLongLong(fp8_scratch(plane, v[4]));
}

bool read_rows(const i64* extra, const Call& call, Quantizer& quantizer) {
  Fp8 codec;
  if (!read_fp8(extra, call, codec)) return false;
  quantizer = {[=](const Call& c) { fp8_compress(c, codec); },
               [=](const Call& c) { return fp8_decompress(c, codec); },
               fp8_row_nbytes(call.plane, codec), fp8_scratch(call.plane, 1)};
  return true;
}

PyMethodDef methods[] = {
    {"fp8_compress", py_fp8_compress, METH_VARARGS, "Encode fp8 rows."},
    {"fp8_decompress", py_fp8_decompress, METH_VARARGS, "Decode fp8 rows."},
    {"fp8_scratch", py_fp8_scratch, METH_VARARGS,
     "Scratch bytes of either call: block_size, num_heads, head_dim, itemsize, threads."},
    {nullptr, nullptr, 0, nullptr}};
const AddMethods added(methods);
const AddQuantizer quantizer("fp8", kNumExtra, read_rows);

}  // namespace
}  // namespace kv
