// Python functions of raw.
#include "module.h"

namespace kv {
namespace {

PyObject* py_raw_compress(PyObject*, PyObject* args) {
  Call call;
  if (!read_arguments(args, 0, call, nullptr)) return nullptr;
  if (!enough(call.row_nbytes, raw_row(call.plane), kSmallRows)) return nullptr;
  return run([&] { return raw_compress(call), -1; });
}

PyObject* py_raw_decompress(PyObject*, PyObject* args) {
  Call call;
  if (!read_arguments(args, 0, call, nullptr)) return nullptr;
  return run([&] { return raw_decompress(call); });
}

PyMethodDef methods[] = {
    {"raw_compress", py_raw_compress, METH_VARARGS, "Encode raw rows."},
    {"raw_decompress", py_raw_decompress, METH_VARARGS, "Decode raw rows."},
    {nullptr, nullptr, 0, nullptr}};
const AddMethods added(methods);

}  // namespace
}  // namespace kv
