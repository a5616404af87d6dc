// Python functions of bitplane.
#include "module.h"

namespace kv {
namespace {

bool read_bitplane(const i64* extra, const Call& call, Bitplane& codec) {
  if (!read_format(extra[0], call.plane, codec.format)) return false;
  if (extra[1] != 0 && extra[1] != 1) return refuse("no such rate");
  codec.two_level = extra[1] == 1;
  return enough(call.scratch_nbytes, bitplane_scratch(call.plane, call.num_threads), kSmallScratch);
}

PyObject* py_bitplane_compress(PyObject*, PyObject* args) {
  Call call;
  i64 extra[2];
  Bitplane codec;
  if (!read_arguments(args, 2, call, extra) || !read_bitplane(extra, call, codec) ||
      !enough(call.row_nbytes, raw_row(call.plane), kSmallRows)) {
    return nullptr;
  }
  return run([&] { return bitplane_compress(call, codec), -1; });
}

PyObject* py_bitplane_decompress(PyObject*, PyObject* args) {
  Call call;
  i64 extra[2];
  Bitplane codec;
  if (!read_arguments(args, 2, call, extra) || !read_bitplane(extra, call, codec)) return nullptr;
  return run([&] { return bitplane_decompress(call, codec); });
}

PyObject* py_bitplane_scratch(PyObject*, PyObject* args) {
  i64 v[5];
  if (!read_integers(args, v, 5)) return nullptr;
  Plane plane{};
  plane.block_size = v[0], plane.num_heads = v[1], plane.head_dim = v[2], plane.itemsize = v[3];
  return PyLong_FromLongLong(bitplane_scratch(plane, v[4]));
}

PyMethodDef methods[] = {
    {"bitplane_compress", py_bitplane_compress, METH_VARARGS, "Encode bitplane rows."},
    {"bitplane_decompress", py_bitplane_decompress, METH_VARARGS, "Decode bitplane rows."},
    {"bitplane_scratch", py_bitplane_scratch, METH_VARARGS,
     "Scratch bytes either way: block size, heads, head dim, itemsize, threads."},
    {nullptr, nullptr, 0, nullptr}};
const AddMethods added(methods);

}  // namespace
}  // namespace kv
