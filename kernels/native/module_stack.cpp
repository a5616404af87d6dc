// Python functions of the stack: a call whose rows are the coded ones, and the plain rows.
#include "module.h"
#include "stack.h"

namespace kv {
namespace {

enum Extra { kPlain, kStride, kSlotNbytes, kSizes, kSizesStride, kParts, kNumParts, kPlainNbytes,
             kLanes, kNumExtra };
constexpr int kQuantizer = kNumExtra, kWholeExtra = kNumExtra + 1;

bool read_stack(const i64* v, i64 block_size, Stack& stack) {
  stack = {pointer<u8>(v[kPlain]), v[kStride], v[kSlotNbytes], pointer<i32>(v[kSizes]),
           v[kSizesStride], pointer<const Part>(v[kParts]), v[kNumParts], v[kPlainNbytes],
           static_cast<int>(v[kLanes])};
  if (stack.num_parts < 0 || stack.num_parts > kMaxParts) return refuse("too many parts");
  if (stack.lanes != 32 && stack.lanes != 64) return refuse("32 or 64 lanes are wanted");
  i64 end = kPrefix;
  for (i64 p = 0; p < stack.num_parts; ++p) {
    const Part& part = stack.parts[p];
    constexpr i64 most = i64{1} << 31;
    if (part.entries < 0 || part.entries > most || part.entry_nbytes < 0 ||
        part.entry_nbytes > most || part.nbytes() > most || part.begin != end || part.tokens < 0 ||
        part.coding < 0 || part.coding >= kNumCodings || part.used_nbytes(block_size) > part.nbytes()) {
      return refuse("a part of the plain rows is out of range");
    }
    end = part.begin + align16(part.nbytes());
  }
  return end == stack.plain_nbytes || refuse("the parts do not tile the plain rows");
}

PyObject* convert(PyObject* args, i64 (*rows)(const Call&, const Stack&), bool encodes) {
  Call call;
  i64 extra[kNumExtra];
  Stack stack;
  if (!read_arguments(args, kNumExtra, call, extra) ||
      !read_stack(extra, call.plane.block_size, stack) ||
      !enough(encodes ? call.row_nbytes : stack.row_nbytes, stack.plain_nbytes, kSmallRows) ||
      !enough(call.scratch_nbytes, stack_scratch(stack, call.num_threads), kSmallScratch)) {
    return nullptr;
  }
  return run([&] { return rows(call, stack); });
}

PyObject* py_stack_encode(PyObject*, PyObject* args) { return convert(args, stack_encode, true); }
PyObject* py_stack_decode(PyObject*, PyObject* args) { return convert(args, stack_decode, false); }

// A call from blocks: the plain rows' integers, a quantizer's number, its own integers.
bool read_whole(PyObject* args, Call& call, Stack& stack, Quantizer& quantizer) {
  const int num_extra = num_extra_of(args);
  i64 extra[kMaxExtra] = {};
  if (num_extra < kWholeExtra) return refuse("too few integers");
  if (!read_arguments(args, num_extra, call, extra) ||
      !read_stack(extra, call.plane.block_size, stack)) {
    return false;
  }
  const AddQuantizer* const found = quantizer_at(extra[kQuantizer]);
  if (found == nullptr || found->num_extra != num_extra - kWholeExtra) {
    return refuse("no such quantizer, or integers of another one");
  }
  if (!found->read(extra + kWholeExtra, call, quantizer)) return false;
  if (quantizer.row_nbytes != stack.plain_nbytes) return refuse("plain rows of another size");
  return enough(stack.row_nbytes, stack.plain_nbytes, kSmallRows) &&
         enough(call.scratch_nbytes, stack_call_scratch(stack, quantizer, call.num_threads),
                kSmallScratch);
}

PyObject* py_stack_compress(PyObject*, PyObject* args) {
  Call call;
  Stack stack;
  Quantizer quantizer;
  if (!read_whole(args, call, stack, quantizer) ||
      !enough(call.row_nbytes, stack.plain_nbytes, kSmallRows)) {
    return nullptr;
  }
  return run([&] { return stack_compress(call, stack, quantizer), i64{-1}; });
}

PyObject* py_stack_decompress(PyObject*, PyObject* args) {
  Call call;
  Stack stack;
  Quantizer quantizer;
  if (!read_whole(args, call, stack, quantizer)) return nullptr;
  return run([&] { return stack_decompress(call, stack, quantizer); });
}

PyObject* py_quantizers(PyObject*, PyObject*) {
  PyObject* list = PyList_New(0);
  for (i64 number = 0; list != nullptr && quantizer_at(number) != nullptr; ++number) {
    PyObject* name = PyUnicode_FromString(quantizer_at(number)->name);
    if (name != nullptr) PyList_Append(list, name);
    Py_XDECREF(name);
  }
  return list;
}

PyObject* py_stack_scratch(PyObject*, PyObject* args) {
  i64 v[kNumExtra + 2];
  Stack stack;
  if (!read_integers(args, v, kNumExtra + 2) || !read_stack(v, v[kNumExtra], stack)) return nullptr;
  return PyLong_FromLongLong(stack_scratch(stack, v[kNumExtra + 1]));
}

PyMethodDef methods[] = {
    {"stack_encode", py_stack_encode, METH_VARARGS, "Code plain rows of a quantizer."},
    {"stack_decode", py_stack_decode, METH_VARARGS, "Plain rows of a quantizer from coded ones."},
    {"stack_compress", py_stack_compress, METH_VARARGS, "Quantize blocks and code their rows."},
    {"stack_decompress", py_stack_decompress, METH_VARARGS, "Blocks of a quantizer's coded rows."},
    {"quantizers", py_quantizers, METH_NOARGS, "Names of the stack's quantizers, by number."},
    {"stack_scratch", py_stack_scratch, METH_VARARGS,
     "Scratch bytes of either call: the plain rows' integers, block_size, threads."},
    {nullptr, nullptr, 0, nullptr}};
const AddMethods added(methods);

}  // namespace
}  // namespace kv
