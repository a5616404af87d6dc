// Python functions of split, and of the coder for tests.
#include <optional>

#include "module.h"
#include "split.h"

namespace kv {
namespace {

bool read_model(i64 value, SplitModel& model) {
  model = static_cast<SplitModel>(value);
  return (value >= 0 && value < kNumModels) || refuse("no such model");
}

// A codec's own arguments: element type, model, and what `split_contexts` filled or 0.
constexpr int kNumExtra = 3;

struct Arguments {
  Format format;
  SplitModel model;
  std::optional<Contexts> contexts;

  const Contexts* tables() const { return contexts ? &*contexts : nullptr; }
};

bool read_split(const i64* extra, const Call& call, Arguments& a) {
  if (!read_format(extra[0], call.plane, a.format) || !read_model(extra[1], a.model)) return false;
  if (!is_tabled(a.model)) return true;
  if (extra[2] == 0) return refuse("a model of a profile without tables");
  a.contexts.emplace(pointer<u8>(extra[2]));
  return a.contexts->channels == call.plane.token_numel() ||
         refuse("the tables are of another number of channels");
}

PyObject* py_split_compress(PyObject*, PyObject* args) {
  Call call;
  i64 extra[kNumExtra];
  Arguments a;
  if (!read_arguments(args, kNumExtra, call, extra) || !read_split(extra, call, a) ||
      !enough(call.row_nbytes, raw_row(call.plane), kSmallRows) ||
      !enough(call.scratch_nbytes, split_compress_scratch(call.plane, a.model, call.num_threads),
              kSmallScratch)) {
    return nullptr;
  }
  return run([&] { return split_compress(call, a.format, a.model, a.tables()), -1; });
}

PyObject* py_split_decompress(PyObject*, PyObject* args) {
  Call call;
  i64 extra[kNumExtra];
  Arguments a;
  if (!read_arguments(args, kNumExtra, call, extra) || !read_split(extra, call, a) ||
      !enough(call.scratch_nbytes, split_decompress_scratch(call.plane, a.model, call.n),
              kSmallScratch)) {
    return nullptr;
  }
  return run([&] { return split_decompress(call, a.format, a.model, a.tables()); });
}

// Bytes of the contexts of a plane's tables; fills them in where there is room for them.
PyObject* py_split_contexts(PyObject*, PyObject* args) {
  i64 v[13];
  if (!read_integers(args, v, 13)) return nullptr;
  const Format format = static_cast<Format>(v[0]);
  if (v[0] < 0 || v[0] >= kNumFormats) return refuse("no such element type"), nullptr;
  const ProfileTables tables{v[1], v[2], v[3], static_cast<u32>(kFormats[format].exponent_bits),
                             leading_bits(format),
                             pointer<const u8>(v[4]), pointer<const u8>(v[5]),
                             pointer<const u8>(v[6]), pointer<const u8>(v[7]),
                             pointer<const u16>(v[8]), pointer<const u16>(v[9]),
                             pointer<const u16>(v[10])};
  const i64 sizes[] = {v[1], count_live(tables), v[2], v[3]};
  const Contexts contexts(pointer<u8>(v[11]), sizes);
  if (v[12] >= contexts.nbytes) fill_contexts(tables, contexts);
  return PyLong_FromLongLong(contexts.nbytes);
}

// (compress, decompress) scratch of the split codec.
PyObject* py_split_scratch(PyObject*, PyObject* args) {
  i64 v[6];
  SplitModel model;
  if (!read_integers(args, v, 6) || !read_model(v[5], model)) return nullptr;
  Plane plane{};
  plane.block_size = v[0], plane.num_heads = 1, plane.head_dim = v[1], plane.itemsize = v[2];
  return Py_BuildValue("LL", static_cast<long long>(split_compress_scratch(plane, model, v[3])),
                       static_cast<long long>(split_decompress_scratch(plane, model, v[4])));
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
     "rows, model."},
    {"split_contexts", py_split_contexts, METH_VARARGS,
     "Bytes of a profile's tables as the loops want them, filled in where there is room: element "
     "type, channels, classes, sign classes, addresses of the tables, address and bytes of the "
     "room."},
    {"encode_entry", py_encode_entry, METH_VARARGS,
     "(reciprocal, packed) of a frequency and a first slot, for tests."},
    {nullptr, nullptr, 0, nullptr}};
const AddMethods added(methods);

}  // namespace
}  // namespace kv
