// Python functions of center=profile.
#include "module.h"

namespace kv {
namespace {

enum Extra { kSource, kMean, kNumExtra };  // element type, means [num_heads, head_dim]

template <class Work>
PyObject* shifted(PyObject* args, const Work& work) {
  Call call;
  i64 extra[kNumExtra];
  Format format;
  if (!read_arguments(args, kNumExtra, call, extra)) return nullptr;
  if (!read_format(extra[kSource], call.plane, format) ||
      !enough(kNumSources - 1, extra[kSource], "no such element type") ||
      !enough(call.row_nbytes, call.plane.numel() * call.plane.itemsize, kSmallRows)) {
    return nullptr;
  }
  const Center center{extra[kSource], pointer<const float>(extra[kMean])};
  return run([&] { return work(call, center), i64{-1}; });
}

PyObject* py_take_off(PyObject*, PyObject* args) { return shifted(args, center_take_off); }

PyObject* py_put_back(PyObject*, PyObject* args) { return shifted(args, center_put_back); }

PyMethodDef methods[] = {
    {"center_take_off", py_take_off, METH_VARARGS, "Dense blocks of a cache, less their means."},
    {"center_put_back", py_put_back, METH_VARARGS, "Dense blocks and their means, to a cache."},
    {nullptr, nullptr, 0, nullptr}};
const AddMethods added(methods);

}  // namespace
}  // namespace kv
