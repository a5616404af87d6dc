// Python functions of nvfp4, mxfp4 and mxfp8.
#include "module.h"

namespace kv {
namespace {

constexpr int kExtra = 4;

bool read_microscaling(const i64* extra, const Call& call, Microscaling& ms) {
  ms = {extra[0], static_cast<Microscaling::Kind>(extra[1]), extra[2] != 0,
        pointer<const float>(extra[3])};
  constexpr i64 itemsizes[kNumSources] = {2, 2, 4};
  if (ms.source < 0 || ms.source >= kNumSources || extra[1] < 0 ||
      extra[1] >= Microscaling::kNumKinds || itemsizes[ms.source] != call.plane.itemsize) {
    return refuse("no such element type or code type");
  }
  if (call.plane.head_dim % ms.group() != 0) return refuse("a head has no whole groups");
  return enough(call.scratch_nbytes, microscaling_scratch(call.plane, call.num_threads),
                kSmallScratch);
}

PyObject* py_compress(PyObject*, PyObject* args) {
  Call call;
  i64 extra[kExtra];
  Microscaling ms;
  if (!read_arguments(args, kExtra, call, extra) || !read_microscaling(extra, call, ms) ||
      !enough(call.row_nbytes, microscaling_row_nbytes(call.plane, ms), kSmallRows)) {
    return nullptr;
  }
  return run([&] { return microscaling_compress(call, ms), -1; });
}

PyObject* py_decompress(PyObject*, PyObject* args) {
  Call call;
  i64 extra[kExtra];
  Microscaling ms;
  if (!read_arguments(args, kExtra, call, extra) || !read_microscaling(extra, call, ms)) {
    return nullptr;
  }
  return run([&] { return microscaling_decompress(call, ms); });
}

PyObject* py_scratch(PyObject*, PyObject* args) {
  i64 v[3];
  if (!read_integers(args, v, 3)) return nullptr;
  Plane plane{};
  plane.head_dim = v[0], plane.itemsize = v[1];
  return PyLong_FromLongLong(microscaling_scratch(plane, v[2]));
}

bool read_rows(const i64* extra, const Call& call, Quantizer& quantizer) {
  Microscaling codec;
  if (!read_microscaling(extra, call, codec)) return false;
  quantizer = {[=](const Call& c) { microscaling_compress(c, codec); },
               [=](const Call& c) { return microscaling_decompress(c, codec); },
               microscaling_row_nbytes(call.plane, codec), microscaling_scratch(call.plane, 1)};
  return true;
}

PyMethodDef methods[] = {
    {"nvfp4_compress", py_compress, METH_VARARGS, "Encode nvfp4 rows."},
    {"nvfp4_decompress", py_decompress, METH_VARARGS, "Decode nvfp4 rows."},
    {"mxfp4_compress", py_compress, METH_VARARGS, "Encode mxfp4 rows."},
    {"mxfp4_decompress", py_decompress, METH_VARARGS, "Decode mxfp4 rows."},
    {"mxfp8_compress", py_compress, METH_VARARGS, "Encode mxfp8 rows."},
    {"mxfp8_decompress", py_decompress, METH_VARARGS, "Decode mxfp8 rows."},
    {"microscaling_scratch", py_scratch, METH_VARARGS,
     "Scratch bytes of any of these calls: head_dim, itemsize, threads."},
    {nullptr, nullptr, 0, nullptr}};
const AddMethods added(methods);
const AddQuantizer stacked_nvfp4("nvfp4", kExtra, read_rows);
const AddQuantizer stacked_mxfp4("mxfp4", kExtra, read_rows);
const AddQuantizer stacked_mxfp8("mxfp8", kExtra, read_rows);

}  // namespace
}  // namespace kv
