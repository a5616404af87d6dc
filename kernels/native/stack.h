// The stack: plain rows of any quantizer to coded rows and back; see formats/stack.md.
#pragma once

#include <functional>

#include "call.h"

namespace kv {

// Order of CODINGS in kernels/_stack_native.py; floats follow in the order of Format.
enum Coding : i64 { kRawBytes, kBytes, kNibbles, kE2m1, kFloats };
constexpr i64 kNumCodings = kFloats + kNumFormats;

// A part of a plain row: `entries` of entry_nbytes bytes, each for `tokens` tokens (0: all of it
// belongs to the block). Laid out as Python hands it over.
struct Part {
  i64 begin, entry_nbytes, entries, tokens, coding;

  i64 nbytes() const { return entries * entry_nbytes; }
  i64 used_nbytes(i64 valid) const {
    return tokens == 0 ? nbytes() : (valid + tokens - 1) / tokens * entry_nbytes;
  }
  i64 num_symbols(i64 valid) const;
  i64 raw_nbytes(i64 valid) const;
  int alphabet() const;
};

constexpr i64 kMaxParts = 16, kPartFields = 5;

// What a quantizer does to the blocks of a call, whose rows are plain, with its parameters.
struct Quantizer {
  std::function<void(const Call&)> compress;
  std::function<i64(const Call&)> decompress;  // returns damage
  i64 row_nbytes, scratch_nbytes;              // of a row, and of one thread
};

// The plain rows of a call, whose `rows` are the coded ones.
struct Stack {
  u8* plain;
  i64 stride, row_nbytes;  // of a slot; a plain row takes plain_nbytes of it
  i32* nbytes;
  i64 nbytes_stride;
  const Part* parts;
  i64 num_parts, plain_nbytes;
  int lanes;

  u8* row(i64 i) const { return plain + i * stride; }
};

// Damage as the decoders of codecs report it; an encoder looks at its plain rows too.
i64 stack_encode(const Call& call, const Stack& stack);
i64 stack_decode(const Call& call, const Stack& stack);
i64 stack_scratch(const Stack& stack, i64 num_threads);

// Blocks to coded rows and back. An encoder's thread has one plain row, the first ones of `plain`;
// a decoder finds all damage before it writes a block. Damage that the quantizer finds in a plain
// row is returned as -2 - damage.
void stack_compress(const Call& call, const Stack& stack, const Quantizer& quantizer);
i64 stack_decompress(const Call& call, const Stack& stack, const Quantizer& quantizer);
i64 stack_call_scratch(const Stack& stack, const Quantizer& quantizer, i64 num_threads);

}  // namespace kv
