// The loops over elements, once per instruction set; chosen when a call begins.
#pragma once

#include "bitplane.h"
#include "common.h"
#include "contexts.h"
#include "rans.h"

namespace kv {

// Scales of the fp8 codec: element type (bf16, fp16, fp32) and code type (e4m3, e5m2).
constexpr int kNumSources = 3, kNumTargets = 2, kMaxPlanes = 3;
constexpr int kNumMxTargets = 3;

// turboangle: how codes below `base` are packed. bits is 0 where `group` digits share `group_nbytes`.
struct Packing {
  i64 base, bits, group, group_nbytes;
  i64 nbytes;  // of a vector
};

enum Norms : i64 { kLinearNorms, kLogNorms, kWholeNorms };

struct TurboAngle {
  i64 source, norm;
  bool half;  // whole norms, or the ends of coded ones, are fp16 instead of fp32
  Packing angles, norms;
  const float *directions, *boundaries;  // (cos, sin) [n]
  const u32* signs;                      // 0x80000000 where D is -1 [head_dim]
  const i32 *log_table, *power_table;    // [257]
};

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
  const u8* (*decode)(int lanes, const DecodeTable& table, u32* states, const u8* words,
                      const u8* end, const u8* readable, i64 n, u8* symbols);

  // Encodes symbols [n] backward, writing words below `end`; returns the first word. Up to 16
  // bytes below it are overwritten.
  u8* (*encode)(int lanes, const EncodeTable& table, u32* states, const u8* symbols, i64 n,
                u8* end);

  // Occurrences of every symbol; the second wants symbols below 16.
  void (*count)(const u8* symbols, i64 n, u32* counts);
  void (*count_few)(const u8* symbols, i64 n, u32* counts);

  // Largest symbol.
  u8 (*largest)(const u8* symbols, i64 n);

  // Bit patterns [n] to exponents [n] and planes of sign and mantissa, and back. Planes are padded
  // with zeros to whole groups of 4; sub-byte planes are written in whole 8 elements.
  void (*split[kNumFormats])(const u8* bits, i64 n, u8* exponents, u8* const* planes);
  void (*join[kNumFormats])(const u8* exponents, const u8* const* planes, i64 n, u8* bits);

  // split, centred: the centre of every channel of exponents [tokens, channels]; counts of
  // symbols about a middle; origins taken off and added; the centres part from 3-bit fields and its base, and the origins it stands for. `work`
  // has room for 8 more than channels.
  void (*centres)(const u8* exponents, i64 tokens, i64 channels, u8* centres);
  void (*count_centred)(const u8* symbols, i64 n, u8 middle, u32* counts);
  void (*subtract_origins)(const u8* origins, i64 tokens, i64 channels, u8 mask, const u8* from,
                           u8* to);
  void (*add_origins)(const u8* origins, i64 tokens, i64 channels, u8 mask, u8* symbols);
  void (*pack_centres)(const u8* fields, i64 channels, u8 base, u8* work, u8* part);
  void (*unpack_origins)(const u8* part, i64 channels, u8* work, u8* origins);

  // fp8: largest finite magnitude as fp32 bits; codes from elements; elements from codes.
  u32 (*amax[kNumSources])(const u8* bits, i64 n);
  void (*quantize[kNumSources][kNumTargets])(const u8* bits, i64 n, float scale, u8* codes);
  void (*dequantize[kNumSources][kNumTargets])(const u8* codes, i64 n, float scale, u8* bits);

  // The same with a scale for every channel; `most` holds magnitudes as patterns of elements.
  void (*channel_amax[kNumSources])(const u8* bits, i64 n, u8* most);
  void (*widen_amax[kNumSources])(const u8* most, i64 n, u32* wide);
  void (*quantize_channels[kNumSources][kNumTargets])(const u8* bits, i64 n, const float* scales,
                                                      u8* codes);
  void (*dequantize_channels[kNumSources][kNumTargets])(const u8* codes, i64 n,
                                                        const float* scales, u8* bits);

  // Bytes to n nibbles, low ones first, and back; n is rounded up to a multiple of 8.
  void (*unpack4)(const u8* bytes, i64 n, u8* nibbles);
  void (*unpack_e2m1)(const u8* bytes, i64 n, u8* nibbles);  // 8, which is -0, becomes 0
  void (*pack4)(const u8* nibbles, i64 n, u8* bytes);
  // turboangle: one vector of `dim` elements to its codes, norms and range, and back.
  void (*turbo_encode[kNumSources])(const TurboAngle& t, const u8* bits, i64 dim, u8* scratch,
                                    u8* angles, u8* norms, u8* ends);
  void (*turbo_decode[kNumSources])(const TurboAngle& t, const u8* angles, const u8* norms,
                                    const u8* ends, i64 dim, u8* scratch, u8* bits);
  // nvfp4: groups of 16 under a scale byte each and a global scale, with one rule for scales or two.
  void (*nvfp4_quantize[kNumSources])(const u8* bits, i64 groups, float global, bool two_ways,
                                      u8* scales, u8* codes);
  void (*nvfp4_dequantize[kNumSources])(const u8* codes, const u8* scales, i64 groups,
                                        float global, u8* bits);

  // mxfp4 and mxfp8: groups of 32 under a power of two; codes are e2m1, e4m3 or e5m2.
  void (*mx_quantize[kNumSources][kNumMxTargets])(const u8* bits, i64 groups, u8* scales,
                                                  u8* codes);
  void (*mx_dequantize[kNumSources][kNumMxTargets])(const u8* codes, const u8* scales, i64 groups,
                                                    u8* bits);
  // bitplane: exponents [n] of elements; the reach-th largest of each channel; codes of 3 of each
  // column; planes and flags of a tile, for bits 3 and 2+3, and back.
  void (*bitplane_exponents[kNumFormats])(const u8* bits, i64 n, u8* exponents);
  void (*bitplane_levels)(const u8* exponents, i64 tokens, i64 channels, i64 reach,
                          int exponent_bits, u8* levels);
  void (*bitplane_count)(const u8* planes, i64 row_words, i64 rows, i64 columns, u32* counts);
  void (*bitplane_pack[kNumFormats][2])(Tile& tile);
  void (*bitplane_unpack[kNumFormats][2])(const Tile& tile);
  Int4Loops int4;
  TurboquantLoops turboquant;

  // split, with a profile: steps of a row's lanes, from and to fields [tokens, live]; decode also
  // finds whether an exponent is too wide, encode gives up below `lowest` (null). Elements to
  // fields and planes of low mantissa bits, and back.
  const u8* (*decode_tabled)(const Walk& walk, u32* states, const u8* words, const u8* end,
                             const u8* readable, bool& wide, u16* fields);
  u8* (*encode_tabled)(const Walk& walk, u32* states, const u16* fields, u8* lowest, u8* words);
  void (*split_low[kNumFormats])(const u8* bits, i64 n, u16* fields, u8* const* planes);
  void (*join_low[kNumFormats])(const u16* fields, const u8* const* planes, i64 n, u8* bits);
  // center=profile: means [n] added to elements, or taken off where flip is the sign bit.
  void (*shift[kNumSources])(u8* bits, i64 n, const float* mean, u32 flip);
};

// Instruction sets of this build, ascending; null where this machine lacks them.
constexpr int kNumIsas = 3;
const Isa* isa_at(int index);

// The best one here for -1, else the one at an index, null if it cannot run.
const Isa* choose_isa(i64 index);

}  // namespace kv
