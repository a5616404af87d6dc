// Python functions of split, and of the coder for tests.
#include "module.h"

namespace kv {
namespace {

bool read_model(i64 value, SplitModel& model) {
  model = static_cast<SplitModel>(value);
  return (value >= 0 && value < kNumModels) || refuse("no such model");
}

PyObject* py_split_compress(PyObject*, PyObject* args) {
  Call call;
  i64 extra[2];
  Format format;
  SplitModel model;
  if (!read_arguments(args, 2, call, extra) || !read_format(extra[0], call.plane, format) ||
      !read_model(extra[1], model) ||
      !enough(call.row_nbytes, raw_row(call.plane), kSmallRows) ||
      !enough(call.scratch_nbytes, split_compress_scratch(call.plane, call.num_threads),
              kSmallScratch)) {
    return nullptr;
  }
  return run([&] { return split_compress(call, format, model), -1; });
}

PyObject* py_split_decompress(PyObject*, PyObject* args) {
  Call call;
  i64 extra[2];
  Format format;
  SplitModel model;
  if (!read_arguments(args, 2, call, extra) || !read_format(extra[0], call.plane, format) ||
      !read_model(extra[1], model) ||
      !enough(call.scratch_nbytes, split_decompress_scratch(call.plane, call.n), kSmallScratch)) {
    return nullptr;
  }
  return run([&] { return split_decompress(call, format, model); });
}

// (compress, decompress) scratch of the split codec.
PyObject* py_split_scratch(PyObject*, PyObject* args) {
  i64 v[5];
  if (!read_integers(args, v, 5)) return nullptr;
  Plane plane{};
  plane.block_size = v[0], plane.num_heads = 1, plane.head_dim = v[1], plane.itemsize = v[2];
  return Py_BuildValue("LL", static_cast<long long>(split_compress_scratch(plane, v[3])),
                       static_cast<long long>(split_decompress_scratch(plane, v[4])));
}

PyObject* py_encode_entry(PyObject*, PyObject* args) {
  i64 v[2];
  if (!read_integers(args, v, 2)) return nullptr;
  const EncodeEntry entry = encode_entry(static_cast<u32>(v[0]), static_cast<u32>(v[1]));
  return Py_BuildValue("kk", static_cast<unsigned long>(entry.reciprocal),
                       static_cast<unsigned long>(entry.packed));
}

PyMethodDef methods[] = {
    {"split_compress", py_split_compress, METH_VARARGS, "Encode split rows."},
    {"split_decompress", py_split_decompress, METH_VARARGS, "Decode split rows."},
    {"split_scratch", py_split_scratch, METH_VARARGS,
     "Scratch bytes to compress and to decompress: block_size, channels, itemsize, threads, "
     "rows."},
    {"encode_entry", py_encode_entry, METH_VARARGS,
     "(reciprocal, packed) of a frequency and a first slot, for tests."},
    {nullptr, nullptr, 0, nullptr}};
const AddMethods added(methods);

}  // namespace
}  // namespace kv
