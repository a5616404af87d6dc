// Python functions of turboangle.
#include "module.h"

namespace kv {
namespace {

constexpr int kNumExtra = 16;

Packing read_packing(const i64* v) { return {v[0], v[1], v[2], v[3], v[4]}; }

bool sound(const Packing& p) {
  return p.base >= 2 && p.base <= 1024 && p.bits >= 0 && p.bits <= 10 && p.group >= 1 &&
         p.group <= 64 && p.group_nbytes >= 1 && p.group_nbytes <= 8 && p.nbytes >= 1;
}

bool read_turboangle(const i64* v, const Call& call, TurboAngle& t) {
  t = {v[0], v[1] >> 1, (v[1] & 1) != 0, read_packing(v + 2), read_packing(v + 7),
       pointer<const float>(v[12]), pointer<const float>(v[13]), pointer<const u32>(v[14]),
       pointer<const i32>(v[15]), nullptr};
  t.power_table = t.log_table + 257;
  constexpr i64 itemsizes[kNumSources] = {2, 2, 4};
  if (t.source < 0 || t.source >= kNumSources || itemsizes[t.source] != call.plane.itemsize ||
      t.norm < kLinearNorms || t.norm > kWholeNorms || !sound(t.angles) || !sound(t.norms) ||
      call.plane.head_dim % 2 != 0) {
    return refuse("no such element type, norm, packing or head_dim");
  }
  return enough(call.scratch_nbytes, turboangle_scratch(call.plane, call.num_threads),
                kSmallScratch);
}

PyObject* py_turboangle_compress(PyObject*, PyObject* args) {
  Call call;
  i64 extra[kNumExtra];
  TurboAngle t;
  if (!read_arguments(args, kNumExtra, call, extra) || !read_turboangle(extra, call, t) ||
      !enough(call.row_nbytes, turboangle_row_nbytes(call.plane, t), kSmallRows)) {
    return nullptr;
  }
  return run([&] { return turboangle_compress(call, t), -1; });
}

PyObject* py_turboangle_decompress(PyObject*, PyObject* args) {
  Call call;
  i64 extra[kNumExtra];
  TurboAngle t;
  if (!read_arguments(args, kNumExtra, call, extra) || !read_turboangle(extra, call, t)) {
    return nullptr;
  }
  return run([&] { return turboangle_decompress(call, t); });
}

PyObject* py_turboangle_scratch(PyObject*, PyObject* args) {
  i64 v[3];
  if (!read_integers(args, v, 3)) return nullptr;
  Plane plane{};
  plane.head_dim = v[0], plane.itemsize = v[1];
  return PyLong_FromLongLong(turboangle_scratch(plane, v[2]));
}

bool read_rows(const i64* extra, const Call& call, Quantizer& quantizer) {
  TurboAngle codec;
  if (!read_turboangle(extra, call, codec)) return false;
  quantizer = {[=](const Call& c) { turboangle_compress(c, codec); },
               [=](const Call& c) { return turboangle_decompress(c, codec); },
               turboangle_row_nbytes(call.plane, codec), turboangle_scratch(call.plane, 1)};
  return true;
}

PyMethodDef methods[] = {
    {"turboangle_compress", py_turboangle_compress, METH_VARARGS, "Encode turboangle rows."},
    {"turboangle_decompress", py_turboangle_decompress, METH_VARARGS, "Decode turboangle rows."},
    {"turboangle_scratch", py_turboangle_scratch, METH_VARARGS,
     "Scratch bytes of either call: head_dim, itemsize, threads."},
    {nullptr, nullptr, 0, nullptr}};
const AddMethods added(methods);
const AddQuantizer quantizer("turboangle", kNumExtra, read_rows);

}  // namespace
}  // namespace kv
