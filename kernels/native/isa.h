// The loops over elements, once per instruction set; chosen when a call begins.
#pragma once

#include "bitplane.h"
#include "common.h"
#include "rans.h"

namespace kv {

// Scales of the fp8 codec: element type (bf16, fp16, fp32) and code type (e4m3, e5m2).
constexpr int kNumSources = 3, kNumTargets = 2, kMaxPlanes = 3;

struct Isa {
  const char* name;

  // Decodes symbols [n] from lanes that start at states; returns where the words were read up to,
  // null if they end too early. Reads nothing past `readable`, which is not before `end`.
  const u8* (*decode)(int lanes, const u32* table, u32* states, const u8* words, const u8* end,
                      const u8* readable, i64 n, u8* symbols);

  // Encodes symbols [n] backward, writing words below `end`; returns the first word. Up to 16
  // bytes below it are overwritten.
  u8* (*encode)(int lanes, const EncodeTable& table, u32* states, const u8* symbols, i64 n,
                u8* end);

  // Occurrences of every symbol.
  void (*count)(const u8* symbols, i64 n, u32* counts);

  // Largest symbol.
  u8 (*largest)(const u8* symbols, i64 n);

  // Bit patterns [n] to exponents [n] and planes of sign and mantissa, and back. Planes are padded
  // with zeros to whole groups of 4; sub-byte planes are written in whole 8 elements.
  void (*split[kNumFormats])(const u8* bits, i64 n, u8* exponents, u8* const* planes);
  void (*join[kNumFormats])(const u8* exponents, const u8* const* planes, i64 n, u8* bits);

  // fp8: largest finite magnitude as fp32 bits; codes from elements; elements from codes.
  u32 (*amax[kNumSources])(const u8* bits, i64 n);
  void (*quantize[kNumSources][kNumTargets])(const u8* bits, i64 n, float scale, u8* codes);
  void (*dequantize[kNumSources][kNumTargets])(const u8* codes, i64 n, float scale, u8* bits);

  // bitplane: exponents [n] of elements; the reach-th largest of each channel; codes of 3 of each
  // column; planes and flags of a tile, for bits 3 and 2+3, and back.
  void (*bitplane_exponents[kNumFormats])(const u8* bits, i64 n, u8* exponents);
  void (*bitplane_levels)(const u8* exponents, i64 tokens, i64 channels, i64 reach,
                          int exponent_bits, u8* levels);
  void (*bitplane_count)(const u8* planes, i64 row_words, i64 rows, i64 columns, u32* counts);
  void (*bitplane_pack[kNumFormats][2])(Tile& tile);
  void (*bitplane_unpack[kNumFormats][2])(const Tile& tile);
};

// Instruction sets of this build, ascending; null where this machine lacks them.
constexpr int kNumIsas = 3;
const Isa* isa_at(int index);

// The best one here for -1, else the one at an index, null if it cannot run.
const Isa* choose_isa(i64 index);

}  // namespace kv
