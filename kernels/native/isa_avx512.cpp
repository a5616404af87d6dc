// x86-64 with AVX-512 F, BW, DQ and VL: sixteen lanes to a vector. With KV_EMULATE_AVX512 the
// intrinsics are plain C++ and the logic runs anywhere.
#if defined(__x86_64__) || defined(KV_EMULATE_AVX512)

#if defined(KV_EMULATE_AVX512)
#include "emulated_avx512.h"
#pragma GCC diagnostic ignored "-Wpsabi"  // vectors of 64 bytes go by value inside this file only
#else
#include <immintrin.h>
#endif

#include <limits>
#include <type_traits>

#include "isa.h"

#define KV_NAME "avx512"
#define KV_VECTOR_BYTES 64

#if defined(KV_EMULATE_AVX512)
#elif defined(__clang__)
#pragma clang attribute push( \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,bmi2,popcnt"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // GCC's own header, bug 105593
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,bmi2,popcnt")
#endif

namespace kv {
namespace {

#include "fields.inc"
#include "lanes.inc"
#include "centres.inc"
#include "scales.inc"
#include "shift.inc"
#include "rotation.inc"
#include "microscaling.inc"
#include "bitplane.inc"
#include "int4.inc"
#include "turboangle.inc"
#include "turboquant.inc"

inline __m512i broadcast(u32 v) { return _mm512_set1_epi32(static_cast<int>(v)); }

// Whole rounds in vectors while a round's words (8 bytes a lane at most, and the last load's 32)
// surely lie in the row; a stream that ends too early shows in decode_rest.
template <int kLanes>
const u8* decode_lanes(const u32* table, u32* states, const u8* words, const u8* end,
                       const u8* readable, i64 n, u8* symbols) {
  constexpr int kVectors = kLanes / 16;
  constexpr i64 per_round = kGroup * kLanes;
  const __m512i low12 = broadcast(0xFFF), top8 = broadcast(0xFF000000u);
  const __m512i lower = broadcast(kLower);
  __m512i x[kVectors];
  for (int v = 0; v < kVectors; ++v) x[v] = _mm512_loadu_si512(states + 16 * v);
  i64 round = 0;
  for (; (round + 1) * per_round <= n && readable - words >= 2 * per_round + 32; ++round) {
    u8* const to = symbols + round * per_round;
    __m512i four[kVectors];
    for (int v = 0; v < kVectors; ++v) four[v] = _mm512_setzero_si512();
#pragma GCC unroll 4
    for (int step = 0; step < kGroup; ++step) {
      __m512i entry[kVectors];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        entry[v] = _mm512_i32gather_epi32(_mm512_and_si512(x[v], low12), table, 4);
      }
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        const __m512i freq = _mm512_and_si512(_mm512_srli_epi32(entry[v], 12), low12);
        const __m512i next =
            _mm512_add_epi32(_mm512_mullo_epi32(freq, _mm512_srli_epi32(x[v], kProbBits)),
                             _mm512_and_si512(entry[v], low12));
        const __mmask16 refill = _mm512_cmplt_epu32_mask(next, lower);
        const __m512i ahead = _mm512_cvtepu16_epi32(
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(words)));
        words += 2 * __builtin_popcount(refill);
        x[v] = _mm512_mask_or_epi32(next, refill, _mm512_slli_epi32(next, 16),
                                    _mm512_maskz_expand_epi32(refill, ahead));
        // a lane's four symbols end up in the four bytes of one integer, the first lowest
        four[v] = _mm512_or_si512(_mm512_srli_epi32(four[v], 8), _mm512_and_si512(entry[v], top8));
      }
    }
    for (int v = 0; v < kVectors; ++v) _mm512_storeu_si512(to + 64 * v, four[v]);
  }
  for (int v = 0; v < kVectors; ++v) _mm512_storeu_si512(states + 16 * v, x[v]);
  return decode_rest(kLanes, table, states, words, end, round, n, symbols);
}

const u8* decode(int lanes, const DecodeTable& table, u32* states, const u8* words, const u8* end,
                 const u8* readable, i64 n, u8* symbols) {
  const auto run = lanes == 64 ? decode_lanes<64> : decode_lanes<32>;
  return run(table.slots, states, words, end, readable, n, symbols);
}

// Reciprocals and packed words of a window of 32 symbols, in registers.
struct Window {
  __m512i reciprocal[2], packed[2];

  explicit Window(const EncodeTable& table) {
    u32 fields[2][32] = {};
    for (u32 i = 0; i < 32; ++i) {
      const u32 symbol = i == 0 ? 0 : table.base + i;
      if (symbol > 255) break;
      fields[0][i] = table.entries[symbol].reciprocal;
      fields[1][i] = table.entries[symbol].packed;
    }
    for (int half = 0; half < 2; ++half) {
      reciprocal[half] = _mm512_loadu_si512(fields[0] + 16 * half);
      packed[half] = _mm512_loadu_si512(fields[1] + 16 * half);
    }
  }
};

template <int kLanes, bool kIncrements, bool kWindowed>
u8* encode_rounds(const EncodeTable& table, u32* states, const u8* symbols, i64 rounds, u8* words) {
  constexpr int kVectors = kLanes / 16;
  const __m512i low12 = broadcast(0xFFF), low13 = broadcast(0x1FFF), low4 = broadcast(15);
  const __m512i low8 = broadcast(0xFF), one = broadcast(1);
  const __m512i base = _mm512_set1_epi8(static_cast<char>(kWindowed ? table.base : 0));
  const Window window(table);
  __m512i x[kVectors];
  for (int v = 0; v < kVectors; ++v) x[v] = _mm512_loadu_si512(states + 16 * v);
  for (i64 round = rounds - 1; round >= 0; --round) {
    __m512i four[kVectors];  // a lane's four symbols in the bytes of one integer
    for (int v = 0; v < kVectors; ++v) {
      const u8* const from = symbols + round * kGroup * kLanes + 64 * v;
      four[v] = _mm512_subs_epu8(_mm512_loadu_si512(from), base);
    }
#pragma GCC unroll 4
    for (int step = kGroup - 1; step >= 0; --step) {
#pragma GCC unroll 4
      for (int v = kVectors - 1; v >= 0; --v) {
        const __m512i index = _mm512_and_si512(_mm512_srli_epi32(four[v], 8 * step), low8);
        __m512i reciprocal, packed;
        if constexpr (kWindowed) {
          reciprocal =
              _mm512_permutex2var_epi32(window.reciprocal[0], index, window.reciprocal[1]);
          packed = _mm512_permutex2var_epi32(window.packed[0], index, window.packed[1]);
        } else {
          reciprocal = _mm512_i32gather_epi32(index, &table.entries[0].reciprocal, 8);
          packed = _mm512_i32gather_epi32(index, &table.entries[0].packed, 8);
        }
        const __m512i less = _mm512_srli_epi32(packed, 20);  // freq - 1
        const __mmask16 spill = _mm512_cmpgt_epu32_mask(_mm512_srli_epi32(x[v], 20), less);
        const int num_words = __builtin_popcount(spill);
        words -= 2 * num_words;
        _mm256_mask_storeu_epi16(words, static_cast<__mmask16>((1u << num_words) - 1),
                                 _mm512_cvtepi32_epi16(_mm512_maskz_compress_epi32(spill, x[v])));
        const __m512i y = _mm512_mask_srli_epi32(x[v], spill, x[v], 16);
        const __m512i inc = _mm512_and_si512(_mm512_srli_epi32(packed, 13), one);
        const __m512i z = kIncrements ? _mm512_add_epi32(y, inc) : y;
        const __m512i high_even = _mm512_srli_epi64(_mm512_mul_epu32(z, reciprocal), 32);
        const __m512i high_odd =
            _mm512_mul_epu32(_mm512_srli_epi64(z, 32), _mm512_srli_epi64(reciprocal, 32));
        const __m512i shift = _mm512_and_si512(_mm512_srli_epi32(packed, 16), low4);
        const __m512i q =
            _mm512_srlv_epi32(_mm512_mask_blend_epi32(0xAAAA, high_even, high_odd), shift);
        const __m512i grown = _mm512_mullo_epi32(q, _mm512_sub_epi32(low12, less));
        x[v] = _mm512_add_epi32(_mm512_add_epi32(y, _mm512_and_si512(packed, low13)), grown);
      }
    }
  }
  for (int v = 0; v < kVectors; ++v) _mm512_storeu_si512(states + 16 * v, x[v]);
  return words;
}

template <int kLanes>
u8* encode_lanes(const EncodeTable& table, u32* states, const u8* symbols, i64 rounds, u8* words) {
  const auto run = table.increments ? (table.windowed ? encode_rounds<kLanes, true, true>
                                                      : encode_rounds<kLanes, true, false>)
                                    : (table.windowed ? encode_rounds<kLanes, false, true>
                                                      : encode_rounds<kLanes, false, false>);
  return run(table, states, symbols, rounds, words);
}

u8* encode(int lanes, const EncodeTable& table, u32* states, const u8* symbols, i64 n, u8* words) {
  const i64 per_round = kGroup * lanes, rounds = n / per_round;
  if (rounds * per_round < n) {
    words = encode_round(lanes, table, states, symbols + rounds * per_round,
                         n - rounds * per_round, words);
  }
  const auto run = lanes == 64 ? encode_lanes<64> : encode_lanes<32>;
  return run(table, states, symbols, rounds, words);
}

typedef u32 V __attribute__((vector_size(64)));

inline __m512i register_of(V v) {
  __m512i r;
  std::memcpy(&r, &v, sizeof(v));
  return r;
}

inline V vector_of(__m512i r) {
  V v;
  std::memcpy(&v, &r, sizeof(v));
  return v;
}

inline bool any(V v) {
  return _mm512_cmpgt_epu32_mask(register_of(v), _mm512_setzero_si512()) != 0;
}

inline V look_up(const u32* table, const u32* index) {
  return vector_of(_mm512_i32gather_epi32(_mm512_loadu_si512(index), table, 4));
}

// table[index[i]] of sixteen lanes, in 64 bits each.
inline void look_up_pair(const u64* table, const u32* index, V& low, V& high) {
  const u32* const words = reinterpret_cast<const u32*>(table);
  const __m512i at = _mm512_loadu_si512(index);
  low = vector_of(_mm512_i32gather_epi32(at, words, 8));
  high = vector_of(_mm512_i32gather_epi32(at, words + 1, 8));
}

inline V multiply_high(V a, V b) {
  const __m512i x = register_of(a), y = register_of(b);
  const __m512i even = _mm512_srli_epi64(_mm512_mul_epu32(x, y), 32);
  const __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64(x, 32), _mm512_srli_epi64(y, 32));
  return vector_of(_mm512_mask_blend_epi32(0xAAAA, even, odd));
}

inline V refill(V x, Words& from) {
  const __m512i next = register_of(x);
  const __mmask16 need = _mm512_cmplt_epu32_mask(next, broadcast(kLower));
  const __m512i ahead = _mm512_cvtepu16_epi32(
      _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from.words + from.at)));
  from.at += 2 * __builtin_popcount(need);
  return vector_of(_mm512_mask_or_epi32(next, need, _mm512_slli_epi32(next, 16),
                                        _mm512_maskz_expand_epi32(need, ahead)));
}

// Half of the lanes under a mask to the words, which grow downward.
inline V spill(V x, V which, u8*& words) {
  const __m512i state = register_of(x);
  const __mmask16 mask = _mm512_cmpgt_epu32_mask(register_of(which), _mm512_setzero_si512());
  const int count = __builtin_popcount(mask);
  words -= 2 * count;
  _mm256_mask_storeu_epi16(words, static_cast<__mmask16>((1u << count) - 1),
                           _mm512_cvtepi32_epi16(_mm512_maskz_compress_epi32(mask, state)));
  return vector_of(_mm512_mask_srli_epi32(state, mask, state, 16));
}

#include "contexts.inc"
#include "table.inc"

}  // namespace

const Isa& isa_avx512() { return kIsa; }

}  // namespace kv

#if defined(KV_EMULATE_AVX512)
#elif defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#endif  // __x86_64__ || KV_EMULATE_AVX512
