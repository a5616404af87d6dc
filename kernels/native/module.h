// What the Python functions of every codec share. A codec's functions stand in module_<codec>.cpp
// and add themselves to the module: nothing lists them.
#pragma once

#define Py_LIMITED_API 0x030A0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "call.h"
#include "stack.h"

namespace kv {

// Adds the functions of a table that ends in a null name; a static object of a codec's file.
struct AddMethods {
  explicit AddMethods(PyMethodDef* methods);
  PyMethodDef* const methods;
  AddMethods* const next;
};

// Adds a quantizer that the stack can call; a static object of a codec's file. `read` checks the
// codec's own integers, `num_extra` of them, and a call's blocks and scratch.
struct AddQuantizer {
  using Read = bool (*)(const i64* extra, const Call& call, Quantizer& quantizer);

  AddQuantizer(const char* name, int num_extra, Read read);
  const char* const name;
  const int num_extra;
  const Read read;
  AddQuantizer* const next;
};

// The one that was added under a number; null if there is none.
const AddQuantizer* quantizer_at(i64 number);

// Element `address` of Python's integers as a pointer.
template <class T>
T* pointer(i64 address) {
  return reinterpret_cast<T*>(static_cast<std::uintptr_t>(address));
}

// False, with a ValueError set.
bool refuse(const char* what);

inline bool enough(i64 got, i64 wanted, const char* what) { return got >= wanted || refuse(what); }

constexpr const char* kSmallScratch = "the scratch memory is too small";
constexpr const char* kSmallRows = "the rows are too short for this codec";

// Exactly `count` integers.
bool read_integers(PyObject* args, i64* values, int count);

// The integers of one call, checked, then `num_extra`, at most kMaxExtra, of the codec's own.
constexpr int kMaxExtra = 32;
bool read_arguments(PyObject* args, int num_extra, Call& call, i64* extra);

// How many of the codec's own there are; negative for too few.
int num_extra_of(PyObject* args);

// A Format that fits the plane's elements.
bool read_format(i64 value, const Plane& plane, Format& format);

inline i64 raw_row(const Plane& plane) { return kPrefix + align16(plane.numel() * plane.itemsize); }

// Runs work() -> i64 without the interpreter's lock.
template <class Work>
PyObject* run(const Work& work) {
  i64 result = -1;
  Py_BEGIN_ALLOW_THREADS;
  result = work();
  Py_END_ALLOW_THREADS;
  return PyLong_FromLongLong(result);
}

}  // namespace kv
