// Python functions of turboquant.
#include "module.h"
#include "turboquant.h"

namespace kv {
namespace {

constexpr int kExtra = 3;

bool read_turboquant(const i64* extra, const Call& call, Turboquant& codec) {
  codec = {extra[0], extra[1], extra[2] != 0};
  constexpr i64 itemsizes[kNumSources] = {2, 2, 4};
  if (codec.source < 0 || codec.source >= kNumSources || codec.bits < 1 || codec.bits > 4 ||
      itemsizes[codec.source] != call.plane.itemsize) {
    return refuse("no such element type or width");
  }
  const i64 multiple = codec.bits == 4 ? 2 : codec.bits == 2 ? 4 : 8;
  if (call.plane.head_dim > kMaxRotated || call.plane.head_dim % multiple != 0) {
    return refuse("this head_dim does not fit the width");
  }
  return enough(call.scratch_nbytes, turboquant_scratch(call.plane, call.num_threads),
                kSmallScratch);
}

PyObject* py_turboquant_compress(PyObject*, PyObject* args) {
  Call call;
  i64 extra[kExtra];
  Turboquant codec;
  if (!read_arguments(args, kExtra, call, extra) || !read_turboquant(extra, call, codec) ||
      !enough(call.row_nbytes, turboquant_row_nbytes(call.plane, codec), kSmallRows)) {
    return nullptr;
  }
  return run([&] { return turboquant_compress(call, codec), -1; });
}

PyObject* py_turboquant_decompress(PyObject*, PyObject* args) {
  Call call;
  i64 extra[kExtra];
  Turboquant codec;
  if (!read_arguments(args, kExtra, call, extra) || !read_turboquant(extra, call, codec)) {
    return nullptr;
  }
  return run([&] { return turboquant_decompress(call, codec); });
}

PyObject* py_turboquant_scratch(PyObject*, PyObject* args) {
  i64 v[3];
  if (!read_integers(args, v, 3)) return nullptr;
  Plane plane{};
  plane.head_dim = v[0], plane.itemsize = v[1];
  return PyLong_FromLongLong(turboquant_scratch(plane, v[2]));
}

bool read_rows(const i64* extra, const Call& call, Quantizer& quantizer) {
  Turboquant codec;
  if (!read_turboquant(extra, call, codec)) return false;
  quantizer = {[=](const Call& c) { turboquant_compress(c, codec); },
               [=](const Call& c) { return turboquant_decompress(c, codec); },
               turboquant_row_nbytes(call.plane, codec), turboquant_scratch(call.plane, 1)};
  return true;
}

PyMethodDef methods[] = {
    {"turboquant_compress", py_turboquant_compress, METH_VARARGS, "Encode turboquant rows."},
    {"turboquant_decompress", py_turboquant_decompress, METH_VARARGS, "Decode turboquant rows."},
    {"turboquant_scratch", py_turboquant_scratch, METH_VARARGS,
     "Scratch bytes of either call: head_dim, itemsize, threads."},
    {nullptr, nullptr, 0, nullptr}};
const AddMethods added(methods);
const AddQuantizer quantizer("turboquant", kExtra, read_rows);

}  // namespace
}  // namespace kv
