// Python functions of int4.
#include "int4.h"
#include "module.h"

namespace kv {
namespace {

constexpr int kExtra = 5;

bool read_int4(const i64* extra, const Call& call, Int4& int4) {
  int4 = {extra[0], extra[1], extra[2], extra[3], extra[4] != 0};
  constexpr i64 itemsizes[kNumSources] = {2, 2, 4};
  if (int4.source < 0 || int4.source >= kNumSources || int4.meta < 0 ||
      int4.meta >= kNumSources || itemsizes[int4.source] != call.plane.itemsize) {
    return refuse("no such element type or type of scales");
  }
  if ((int4.width != 4 && int4.width != 2) || int4.group < 16 ||
      call.plane.head_dim * int4.width % 8 != 0) {
    return refuse("no such width or group, or a head that does not fill bytes");
  }
  return enough(call.scratch_nbytes, int4_scratch(call.plane, call.num_threads), kSmallScratch);
}

PyObject* py_int4_compress(PyObject*, PyObject* args) {
  Call call;
  i64 extra[kExtra];
  Int4 int4;
  if (!read_arguments(args, kExtra, call, extra) || !read_int4(extra, call, int4) ||
      !enough(call.row_nbytes, int4_row_nbytes(call.plane, int4), kSmallRows)) {
    return nullptr;
  }
  return run([&] { return int4_compress(call, int4), -1; });
}

PyObject* py_int4_decompress(PyObject*, PyObject* args) {
  Call call;
  i64 extra[kExtra];
  Int4 int4;
  if (!read_arguments(args, kExtra, call, extra) || !read_int4(extra, call, int4)) return nullptr;
  return run([&] { return int4_decompress(call, int4); });
}

PyObject* py_int4_scratch(PyObject*, PyObject* args) {
  i64 v[3];
  if (!read_integers(args, v, 3)) return nullptr;
  Plane plane{};
  plane.head_dim = v[0], plane.itemsize = v[1];
  return PyLong_FromLongLong(int4_scratch(plane, v[2]));
}

bool read_rows(const i64* extra, const Call& call, Quantizer& quantizer) {
  Int4 codec;
  if (!read_int4(extra, call, codec)) return false;
  quantizer = {[=](const Call& c) { int4_compress(c, codec); },
               [=](const Call& c) { return int4_decompress(c, codec); },
               int4_row_nbytes(call.plane, codec), int4_scratch(call.plane, 1)};
  return true;
}

PyMethodDef methods[] = {
    {"int4_compress", py_int4_compress, METH_VARARGS, "Encode int4 rows."},
    {"int4_decompress", py_int4_decompress, METH_VARARGS, "Decode int4 rows."},
    {"int4_scratch", py_int4_scratch, METH_VARARGS,
     "Scratch bytes of either call: head_dim, itemsize, threads."},
    {nullptr, nullptr, 0, nullptr}};
const AddMethods added(methods);
const AddQuantizer quantizer("int4", kExtra, read_rows);

}  // namespace
}  // namespace kv
