// Python functions of fp8.
#include "module.h"

namespace kv {
namespace {

bool read_fp8(const i64* extra, const Call& call, Fp8& fp8) {
  fp8 = {extra[0], extra[1], extra[2], pointer<const float>(extra[3])};
  constexpr i64 itemsizes[kNumSources] = {2, 2, 4};
  if (fp8.source < 0 || fp8.source >= kNumSources || fp8.target < 0 || fp8.target >= kNumTargets ||
      fp8.sharing < 0 || fp8.sharing > 2 || itemsizes[fp8.source] != call.plane.itemsize) {
    return refuse("no such element type, code type or scale");
  }
  return enough(call.scratch_nbytes, fp8_scratch(call.plane, call.num_threads), kSmallScratch);
}

PyObject* py_fp8_compress(PyObject*, PyObject* args) {
  Call call;
  i64 extra[4];
  Fp8 fp8;
  if (!read_arguments(args, 4, call, extra) || !read_fp8(extra, call, fp8) ||
      !enough(call.row_nbytes, fp8_row_nbytes(call.plane, fp8), kSmallRows)) {
    return nullptr;
  }
  return run([&] { return fp8_compress(call, fp8), -1; });
}

PyObject* py_fp8_decompress(PyObject*, PyObject* args) {
  Call call;
  i64 extra[4];
  Fp8 fp8;
  if (!read_arguments(args, 4, call, extra) || !read_fp8(extra, call, fp8)) return nullptr;
  return run([&] { return fp8_decompress(call, fp8); });
}

PyObject* py_fp8_scratch(PyObject*, PyObject* args) {
  i64 v[4];
  if (!read_integers(args, v, 4)) return nullptr;
  Plane plane{};
  plane.num_heads = v[0], plane.head_dim = v[1], plane.itemsize = v[2];
  return PyLong_FromLongLong(fp8_scratch(plane, v[3]));
}

PyMethodDef methods[] = {
    {"fp8_compress", py_fp8_compress, METH_VARARGS, "Encode fp8 rows."},
    {"fp8_decompress", py_fp8_decompress, METH_VARARGS, "Decode fp8 rows."},
    {"fp8_scratch", py_fp8_scratch, METH_VARARGS,
     "Scratch bytes of either call: num_heads, head_dim, itemsize, threads."},
    {nullptr, nullptr, 0, nullptr}};
const AddMethods added(methods);

}  // namespace
}  // namespace kv
