// Modes 3 and 4 of formats/split.md: a profile's tables as the loops over lanes want them, in one
// piece of memory that is made once and shared by all calls.
#pragma once

#include "rans.h"

namespace kv {

constexpr u32 kEscape = 24;
constexpr int kSymbols = 25, kPrevious = 15, kHistories = 7, kBuckets = 5, kLeads = 8;
constexpr int kNone = 14;  // what comes before the first token
constexpr int kLeading = 3;  // mantissa bits that are coded, at most

// A decoder finds a symbol by its bucket of 2^shift slots. An entry describes two symbols in 32
// bits each, low ones first: the symbol of the bucket's first slot, and the next one if that begins
// inside, else the same again. Few buckets begin more than one: there the second frequency is 0.
//   first slot in bits 0-11, frequency in 12-23, symbol in 24-28, its bucket of signs in 29-31
constexpr int kExponentShift = 4, kMantissaShift = 7;
constexpr int kExponentStride = 32;  // entries of an encoder's table of exponents

// The tables of a plane as formats/profile.md has them.
struct ProfileTables {
  i64 channels, classes, sign_classes;  // C, K, S
  u32 exponent_bits, leading;           // leading: mantissa bits that are coded
  const u8 *centre, *kind, *flip, *sign_kind;    // [C]
  const u16 *exponents, *mantissas, *signs;      // [K, 15, 25], [K, 25, 8], [S, 7, 5]
};

// Where everything lies. Arrays over live channels are padded with zeros to whole vectors.
struct Contexts {
  i64 channels, live, classes, sign_classes, padded, nbytes;
  i64* head;            // the first four of these
  u32* number;          // [live]: of a channel among all
  u32* exponent_table;  // 15 * class
  u32* mantissa_table;  // 25 * class
  u32* sign_table;      // 35 * sign class
  u32* lowest;          // exponent of symbol 0, mod 2^32
  u32* flip;            // the sign of a field, where signs are turned
  u64* exponent_slots;  // [15 K, buckets]
  u64* mantissa_slots;  // [25 K, buckets]
  u32* negative;        // [35 S]: first slot of a set sign
  u16* exponent_starts;  // [15 K, 26]
  u16* mantissa_starts;  // [25 K, 9]
  EncodeEntry* exponents;  // [15 K, 32]
  EncodeEntry* mantissas;  // [25 K, 8]
  EncodeEntry* signs;      // [35 S, 2]

  Contexts(u8* memory, const i64* sizes);  // channels, live, classes, sign_classes

  // Of memory that was filled before, and begins with the sizes.
  explicit Contexts(u8* memory) : Contexts(memory, reinterpret_cast<const i64*>(memory)) {}

  bool all_live() const { return live == channels; }
};

// Live channels of a profile.
i64 count_live(const ProfileTables& tables);

// Fills the memory, `nbytes` of it, that the contexts of these sizes lie in.
void fill_contexts(const ProfileTables& tables, const Contexts& contexts);

// A walk over all steps of a block, forward and backward; elements are `sign, exponent, leading
// mantissa bits` without gaps, [tokens, live].
struct Walk {
  const Contexts* contexts;
  int lanes;
  u32 exponent_bits, leading;
  i64 tokens;
  bool history;  // mode 4

  u32 exponent_at() const { return leading; }
  u32 sign_at() const { return leading + exponent_bits; }
};

// Width of a plane of low mantissa bits: 8 as often as it fits, then 4, 2, 1; 0 past the last.
constexpr int low_width(int bits, int plane) {
  for (int width = 8; width > 0; width /= 2) {
    for (; bits >= width; bits -= width) {
      if (plane-- == 0) return width;
    }
  }
  return 0;
}

// Words of a row: read up to `at`, of `end`. A vector's load does not ask, below `readable`.
struct Words {
  const u8* words;
  i64 at, end, readable;
};

// 0..12: a symbol as a context.
inline u32 step_of(u32 symbol) { return symbol < 9 ? 0 : symbol > 21 ? 12 : symbol - 9; }

inline u32 describe_symbol(u32 start, u32 freq, u32 symbol) {
  return start | freq << 12 | symbol << 24 | step_of(symbol) / 3 << 29;
}

}  // namespace kv
