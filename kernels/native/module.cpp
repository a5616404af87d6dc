// The Python module: integers in, integers out. Tensors come as addresses, sizes and strides; the
// interpreter's lock is released while rows are worked on.
#define Py_LIMITED_API 0x030A0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "call.h"

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
constexpr int kMaxExtra = 4;

template <class T>
T* pointer(i64 address) {
  return reinterpret_cast<T*>(static_cast<std::uintptr_t>(address));
}

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

bool enough(i64 got, i64 wanted, const char* what) { return got >= wanted || refuse(what); }

constexpr const char* kSmallScratch = "the scratch memory is too small";
constexpr const char* kSmallRows = "the rows are too short for this codec";

// Reads the arguments of a function with `num_extra` integers of its own.
bool read_arguments(PyObject* args, int num_extra, Call& call, i64* extra) {
  i64 values[kNumFields + kMaxExtra];
  if (!read_integers(args, values, kNumFields + num_extra) || !read_call(values, call)) {
    return false;
  }
  for (int i = 0; i < num_extra; ++i) extra[i] = values[kNumFields + i];
  return true;
}

template <class Work>
PyObject* run(const Work& work) {
  i64 result = -1;
  Py_BEGIN_ALLOW_THREADS;
  result = work();
  Py_END_ALLOW_THREADS;
  return PyLong_FromLongLong(result);
}

i64 raw_row(const Plane& plane) { return kPrefix + align16(plane.numel() * plane.itemsize); }

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

bool read_format(i64 value, const Plane& plane, Format& format) {
  constexpr i64 itemsizes[kNumFormats] = {2, 2, 4, 1, 1};
  if (value < 0 || value >= kNumFormats || itemsizes[value] != plane.itemsize) {
    return refuse("no such element type");
  }
  format = static_cast<Format>(value);
  return true;
}

PyObject* py_split_compress(PyObject*, PyObject* args) {
  Call call;
  i64 extra[1];
  Format format;
  if (!read_arguments(args, 1, call, extra) || !read_format(extra[0], call.plane, format) ||
      !enough(call.row_nbytes, raw_row(call.plane), kSmallRows) ||
      !enough(call.scratch_nbytes, split_compress_scratch(call.plane, call.num_threads),
              kSmallScratch)) {
    return nullptr;
  }
  return run([&] { return split_compress(call, format), -1; });
}

PyObject* py_split_decompress(PyObject*, PyObject* args) {
  Call call;
  i64 extra[1];
  Format format;
  if (!read_arguments(args, 1, call, extra) || !read_format(extra[0], call.plane, format) ||
      !enough(call.scratch_nbytes, split_decompress_scratch(call.plane, call.n), kSmallScratch)) {
    return nullptr;
  }
  return run([&] { return split_decompress(call, format); });
}

bool read_fp8(const i64* extra, const Call& call, Fp8& fp8) {
  fp8 = {extra[0], extra[1], extra[2], pointer<const float>(extra[3])};
  constexpr i64 itemsizes[kNumSources] = {2, 2, 4};
  if (fp8.source < 0 || fp8.source >= kNumSources || fp8.target < 0 || fp8.target >= kNumTargets ||
      fp8.sharing < 0 || fp8.sharing > 2 || itemsizes[fp8.source] != call.plane.itemsize) {
    return refuse("no such element type, code type or scale");
  }
  return enough(call.scratch_nbytes, fp8_scratch(call.plane, call.num_threads), kSmallScratch);
}

PyObject* py_fp8_compress(PyObject*, PyObject* args) {
  Call call;
  i64 extra[4];
  Fp8 fp8;
  if (!read_arguments(args, 4, call, extra) || !read_fp8(extra, call, fp8) ||
      !enough(call.row_nbytes, fp8_row_nbytes(call.plane, fp8), kSmallRows)) {
    return nullptr;
  }
  return run([&] { return fp8_compress(call, fp8), -1; });
}

PyObject* py_fp8_decompress(PyObject*, PyObject* args) {
  Call call;
  i64 extra[4];
  Fp8 fp8;
  if (!read_arguments(args, 4, call, extra) || !read_fp8(extra, call, fp8)) return nullptr;
  return run([&] { return fp8_decompress(call, fp8); });
}

// (compress, decompress) scratch of the split codec.
PyObject* py_split_scratch(PyObject*, PyObject* args) {
  i64 v[4];
  if (!read_integers(args, v, 4)) return nullptr;
  Plane plane{};
  plane.block_size = 1, plane.num_heads = 1, plane.head_dim = v[0], plane.itemsize = v[1];
  return Py_BuildValue("LL", static_cast<long long>(split_compress_scratch(plane, v[2])),
                       static_cast<long long>(split_decompress_scratch(plane, v[3])));
}

PyObject* py_fp8_scratch(PyObject*, PyObject* args) {
  i64 v[4];
  if (!read_integers(args, v, 4)) return nullptr;
  Plane plane{};
  plane.num_heads = v[0], plane.head_dim = v[1], plane.itemsize = v[2];
  return PyLong_FromLongLong(fp8_scratch(plane, v[3]));
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

PyObject* py_encode_entry(PyObject*, PyObject* args) {
  i64 v[2];
  if (!read_integers(args, v, 2)) return nullptr;
  const EncodeEntry entry = encode_entry(static_cast<u32>(v[0]), static_cast<u32>(v[1]));
  return Py_BuildValue("kk", static_cast<unsigned long>(entry.reciprocal),
                       static_cast<unsigned long>(entry.packed));
}

PyMethodDef methods[] = {
    {"raw_compress", py_raw_compress, METH_VARARGS, "Encode raw rows."},
    {"raw_decompress", py_raw_decompress, METH_VARARGS, "Decode raw rows."},
    {"split_compress", py_split_compress, METH_VARARGS, "Encode split rows."},
    {"split_decompress", py_split_decompress, METH_VARARGS, "Decode split rows."},
    {"fp8_compress", py_fp8_compress, METH_VARARGS, "Encode fp8 rows."},
    {"fp8_decompress", py_fp8_decompress, METH_VARARGS, "Decode fp8 rows."},
    {"split_scratch", py_split_scratch, METH_VARARGS,
     "Scratch bytes to compress and to decompress: numel, itemsize, threads, rows."},
    {"fp8_scratch", py_fp8_scratch, METH_VARARGS,
     "Scratch bytes of either call: num_heads, head_dim, itemsize, threads."},
    {"isas", py_isas, METH_NOARGS, "(index, name) of the instruction sets that run here."},
    {"encode_entry", py_encode_entry, METH_VARARGS,
     "(reciprocal, packed) of a frequency and a first slot, for tests."},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef_Slot slots[] = {{0, nullptr}};

PyModuleDef module = {PyModuleDef_HEAD_INIT,
                      "_native",
                      "Host kernels in C++; called through kvcodec.kernels._native_call only.",
                      0,
                      methods,
                      slots,
                      nullptr,
                      nullptr,
                      nullptr};

}  // namespace
}  // namespace kv

PyMODINIT_FUNC PyInit__native() { return PyModuleDef_Init(&kv::module); }
