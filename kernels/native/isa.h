// The loops over elements, once per instruction set; chosen when a call begins.
#pragma once

#include "common.h"
#include "rans.h"

namespace kv {

// Scales of the fp8 codec: element type (bf16, fp16, fp32) and code type (e4m3, e5m2).
constexpr int kNumSources = 3, kNumTargets = 2, kMaxPlanes = 3;

// int4: ends (smallest and largest finite value) of groups, scales and zeros from them, codes. An
// array of sources or of types of scales is in the order of bf16, fp16, fp32.
struct Int4Loops {
  void (*group_ends[kNumSources])(const u8* bits, i64 n, i64 group, float* low, float* high);
  void (*channel_ends[kNumSources])(const u8* bits, i64 n, bool first, u8* lows, u8* highs);
  void (*finish_ends[kNumSources])(const u8* lows, const u8* highs, i64 n, float* low, float* high);
  void (*measure[kNumSources])(const float* low, const float* high, i64 n, float top, u8* scales,
                               u8* zeros, float* scale, float* zero);
  void (*meta_values[kNumSources])(const u8* meta, i64 n, float* values);
  void (*encode[kNumSources])(const u8* bits, i64 n, const float* scale, const float* zero,
                              int width, u8* packed);
  void (*decode[kNumSources])(const u8* packed, i64 n, const float* scale, const float* zero,
                              int width, u8* bits);
};

// turboquant: a vector to codes, returning its norm, and back.
struct TurboquantLoops {
  float (*encode[kNumSources])(const u8* bits, i64 n, i64 code_bits, const u32* signs,
                               const float* edges, float* work, u8* plane0, u8* plane1);
  void (*decode[kNumSources])(const u8* plane0, const u8* plane1, i64 n, i64 code_bits,
                              const u32* signs, const float* levels, float norm, float* work,
                              u8* bits);
};

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

  Int4Loops int4;
  TurboquantLoops turboquant;
};

// Instruction sets of this build, ascending; null where this machine lacks them.
constexpr int kNumIsas = 3;
const Isa* isa_at(int index);

// The best one here for -1, else the one at an index, null if it cannot run.
const Isa* choose_isa(i64 index);

}  // namespace kv
