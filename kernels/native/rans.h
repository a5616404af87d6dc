// Tables of the rANS coder of formats/rans.md; the loops over lanes are in isa_*.cpp.
#pragma once

#include "common.h"

namespace kv {

constexpr u32 kProbBits = 12;
constexpr u32 kTotal = 1u << kProbBits;
constexpr u32 kLower = 1u << 16;
constexpr int kGroup = 4;
constexpr int kMaxLanes = 64;

static inline int num_lanes(i64 block_nbytes) { return block_nbytes >= 16 * 1024 ? 64 : 32; }

// Symbols of a row in ascending order; frequencies sum to 4096.
struct Model {
  int size = 0;
  u8 symbols[256];
  u16 freqs[256];

  bool single() const { return size == 1; }
};

// Frequencies from counts [256] that sum to total > 0.
void normalize(const u32* counts, u64 total, Model& model);

// Reads a symbol table of a row; false if it is none.
bool read_table(const u8* data, i64 nbytes, Model& model);

// Writes the symbol table; returns its bytes, at most 768.
i64 write_table(const Model& model, u8* out);

// Decoder. Not for a single symbol, whose frequency does not fit and which needs no decoding.
struct DecodeTable {
  alignas(64) u32 slots[kTotal];  // `symbol << 24 | freq << 12 | slot - start`

  // Of at most 16 symbols, for shuffles of bytes: symbols and first slots by index, everything
  // twice. A slot's index is 4 * (how many of `quarters` it is above) and how many of the `thirds`
  // of that quarter, 16 bits each.
  bool few;
  alignas(32) u16 quarters[3][16];
  u16 thirds[3][16];
  u8 freq_low[32], freq_high[32], start_low[32], start_high[32], symbols[32];
};

void fill_decode_table(const Model& model, DecodeTable& table);

// Encoder: how to divide a state by a frequency, and what to add.
//   q = ((x + inc) * reciprocal >> 32) >> shift;   x' = x + bias + q * (4096 - freq)
// packed: bias in bits 0-12, inc in 13, shift in 16-19, freq - 1 in 20-31.
struct EncodeEntry {
  u32 reciprocal;
  u32 packed;
};

// Entry of a frequency in 1..4095 and a first slot; exact for every x below freq * 2^20.
EncodeEntry encode_entry(u32 freq, u32 start);

// What the encoder's loops need of a model of at least two symbols.
struct EncodeTable {
  EncodeEntry entries[256];  // by symbol
  bool increments;           // whether an entry has inc = 1 (at most one has)
  u8 base;                   // symbol - base, or 0 for symbol 0, ...
  bool windowed;             // ... is below 32 and distinct for every symbol of the model
  bool few;                  // ... is below 16
};

void fill_encode_table(const Model& model, EncodeTable& table);

// One symbol forward and backward; the definition that the vector loops equal.
static inline u32 encode_state(u32 x, EncodeEntry entry) {
  const u64 product = (u64{x} + ((entry.packed >> 13) & 1)) * entry.reciprocal;
  const u32 q = static_cast<u32>(product >> 32) >> ((entry.packed >> 16) & 15);
  return x + (entry.packed & 0x1FFF) + q * (kTotal - 1 - (entry.packed >> 20));
}

// Whether the state must give up a word first: x >= freq * 2^20.
static inline bool spills(u32 x, EncodeEntry entry) {
  return (x >> 20) > (entry.packed >> 20);
}

}  // namespace kv
