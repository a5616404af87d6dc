// The Python module: integers in, integers out. Tensors come as addresses, sizes and strides; the
// interpreter's lock is released while rows are worked on.
#include "module.h"

namespace kv {
namespace {

constexpr i64 kMaxNumel = i64{1} << 24;

// The integers every function takes, in this order; a codec's own follow.
enum Field {
  kIsaIndex, kNumThreads,
  kCache, kNumBlocks, kBlockSize, kNumHeads, kHeadDim,
  kStrideBlock, kStrideToken, kStrideHead, kStrideElement, kItemsize,
  kBlockIds, kCount, kValid,
  kRows, kRowStride, kRowNbytes, kSizes, kSizesStride,
  kScratch, kScratchNbytes,
  kNumFields
};

bool read_call(const i64* v, Call& call) {
  call.isa = choose_isa(v[kIsaIndex]);
  if (call.isa == nullptr) return refuse("this machine lacks the instruction set asked for");
  call.num_threads = v[kNumThreads];
  call.plane = {pointer<u8>(v[kCache]), v[kNumBlocks],   v[kBlockSize],  v[kNumHeads],
                v[kHeadDim],            v[kStrideBlock], v[kStrideToken], v[kStrideHead],
                v[kStrideElement],      v[kItemsize]};
  call.block_ids = pointer<const i64>(v[kBlockIds]);
  call.n = v[kCount];
  call.num_valid = pointer<const i32>(v[kValid]);
  call.rows = pointer<u8>(v[kRows]);
  call.row_stride = v[kRowStride];
  call.row_nbytes = v[kRowNbytes];
  call.nbytes = pointer<i32>(v[kSizes]);
  call.nbytes_stride = v[kSizesStride];
  call.scratch = pointer<u8>(v[kScratch]);
  call.scratch_nbytes = v[kScratchNbytes];

  const Plane& plane = call.plane;
  if (call.num_threads < 1 || call.n < 0) return refuse("a negative count, or no thread");
  if (plane.block_size < 1 || plane.block_size > 0xFFFF || plane.num_heads < 1 ||
      plane.num_heads > kMaxNumel || plane.head_dim < 1 || plane.head_dim > kMaxNumel ||
      plane.token_numel() > kMaxNumel || plane.numel() > kMaxNumel) {
    return refuse("the block's sizes are out of range");
  }
  if (plane.itemsize != 1 && plane.itemsize != 2 && plane.itemsize != 4) {
    return refuse("elements of 1, 2 or 4 bytes are wanted");
  }
  for (i64 i = 0; i < call.n; ++i) {
    if (call.block_ids[i] < 0 || call.block_ids[i] >= plane.num_blocks) {
      return refuse("a block id leaves the cache");
    }
    if (call.valid(i) < 0 || call.valid(i) > plane.block_size) {
      return refuse("num_valid leaves the block");
    }
  }
  return true;
}

AddQuantizer*& last_quantizer() {
  static AddQuantizer* last = nullptr;
  return last;
}

AddMethods*& last_methods() {
  static AddMethods* last = nullptr;
  return last;
}

PyObject* py_isas(PyObject*, PyObject*) {
  PyObject* list = PyList_New(0);
  for (int index = 0; list != nullptr && index < kNumIsas; ++index) {
    const Isa* isa = isa_at(index);
    PyObject* item = isa == nullptr ? nullptr : Py_BuildValue("(is)", index, isa->name);
    if (item != nullptr) PyList_Append(list, item);
    Py_XDECREF(item);
  }
  return list;
}

PyMethodDef methods[] = {
    {"isas", py_isas, METH_NOARGS, "(index, name) of the instruction sets that run here."},
    {nullptr, nullptr, 0, nullptr}};
const AddMethods added(methods);

int add_methods(PyObject* module) {
  for (const AddMethods* table = last_methods(); table != nullptr; table = table->next) {
    for (PyMethodDef* method = table->methods; method->ml_name != nullptr; ++method) {
      PyObject* function = PyCFunction_NewEx(method, nullptr, nullptr);
      if (function == nullptr) return -1;
      const int failed = PyModule_AddObjectRef(module, method->ml_name, function);
      Py_DECREF(function);
      if (failed != 0) return -1;
    }
  }
  return 0;
}

PyModuleDef_Slot slots[] = {{Py_mod_exec, reinterpret_cast<void*>(add_methods)}, {0, nullptr}};

PyModuleDef module = {PyModuleDef_HEAD_INIT,
                      "_native",
                      "Host kernels in C++; called through kvcodec.kernels._native_call only.",
                      0,
                      nullptr,
                      slots,
                      nullptr,
                      nullptr,
                      nullptr};

}  // namespace

AddMethods::AddMethods(PyMethodDef* table) : methods(table), next(last_methods()) {
  last_methods() = this;
}

AddQuantizer::AddQuantizer(const char* its_name, int count, Read its_read)
    : name(its_name), num_extra(count), read(its_read), next(last_quantizer()) {
  last_quantizer() = this;
}

const AddQuantizer* quantizer_at(i64 number) {
  const AddQuantizer* at = last_quantizer();
  for (; at != nullptr && number > 0; --number) at = at->next;
  return at;
}

int num_extra_of(PyObject* args) { return static_cast<int>(PyTuple_Size(args)) - kNumFields; }

bool refuse(const char* what) {
  PyErr_SetString(PyExc_ValueError, what);
  return false;
}

bool read_integers(PyObject* args, i64* values, int count) {
  if (PyTuple_Size(args) != count) {
    PyErr_Format(PyExc_TypeError, "%d integers wanted, %zd given", count, PyTuple_Size(args));
    return false;
  }
  for (int i = 0; i < count; ++i) {
    values[i] = PyLong_AsLongLong(PyTuple_GetItem(args, i));
    if (values[i] == -1 && PyErr_Occurred() != nullptr) return false;
  }
  return true;
}

bool read_arguments(PyObject* args, int num_extra, Call& call, i64* extra) {
  i64 values[kNumFields + kMaxExtra];
  if (num_extra < 0 || num_extra > kMaxExtra) return refuse("too few or too many integers");
  if (!read_integers(args, values, kNumFields + num_extra) || !read_call(values, call)) {
    return false;
  }
  for (int i = 0; i < num_extra; ++i) extra[i] = values[kNumFields + i];
  return true;
}

bool read_format(i64 value, const Plane& plane, Format& format) {
  constexpr i64 itemsizes[kNumFormats] = {2, 2, 4, 1, 1};
  if (value < 0 || value >= kNumFormats || itemsizes[value] != plane.itemsize) {
    return refuse("no such element type");
  }
  format = static_cast<Format>(value);
  return true;
}

}  // namespace kv

PyMODINIT_FUNC PyInit__native() { return PyModuleDef_Init(&kv::module); }
