// x86-64 with AVX2, BMI2 and POPCNT: eight lanes to a vector.
#if defined(__x86_64__)

#include <immintrin.h>

#include <limits>
#include <type_traits>

#include "isa.h"

#define KV_NAME "avx2"
#define KV_VECTOR_BYTES 32

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,bmi2,popcnt"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,bmi2,popcnt")
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

// By mask of the lanes that read a word: the shuffle that brings the next words to their lanes,
// zero-extended, from a copy of the words in either half.
struct alignas(32) Expand {
  u8 at[256][32];
};

constexpr Expand make_expand() {
  Expand table{};
  for (int mask = 0; mask < 256; ++mask) {
    int next = 0;
    for (int lane = 0; lane < 8; ++lane) {
      const bool reads = (mask >> lane & 1) != 0;
      for (int b = 0; b < 4; ++b) table.at[mask][4 * lane + b] = 0x80;
      if (!reads) continue;
      table.at[mask][4 * lane] = static_cast<u8>(2 * next);
      table.at[mask][4 * lane + 1] = static_cast<u8>(2 * next + 1);
      ++next;
    }
  }
  return table;
}

// By mask of the lanes that write a word: the shuffle that moves their words to the top.
struct alignas(16) Pack {
  u8 at[256][16];
};

constexpr Pack make_pack() {
  Pack table{};
  for (int mask = 0; mask < 256; ++mask) {
    int top = 8;
    for (int lane = 7; lane >= 0; --lane) {
      if ((mask >> lane & 1) == 0) continue;
      --top;
      table.at[mask][2 * top] = static_cast<u8>(2 * lane);
      table.at[mask][2 * top + 1] = static_cast<u8>(2 * lane + 1);
    }
  }
  return table;
}

constexpr Expand kExpand = make_expand();
constexpr Pack kPack = make_pack();

inline __m256i load_vector(const void* at) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(at));
}

inline void store_vector(void* at, __m256i v) { _mm256_storeu_si256(static_cast<__m256i*>(at), v); }

inline __m256i broadcast(u32 v) { return _mm256_set1_epi32(static_cast<int>(v)); }

// table[slots] without the gather instruction, which is slower on most processors: loads that
// broadcast use no shuffle port, and blends run on any.
inline __m256i look_up(const u32* table, __m256i slots) {
  const __m128i low = _mm256_castsi256_si128(slots), high = _mm256_extracti128_si256(slots, 1);
  const u64 s01 = static_cast<u64>(_mm_cvtsi128_si64(low));
  const u64 s23 = static_cast<u64>(_mm_extract_epi64(low, 1));
  const u64 s45 = static_cast<u64>(_mm_cvtsi128_si64(high));
  const u64 s67 = static_cast<u64>(_mm_extract_epi64(high, 1));
  const __m256i e01 = _mm256_blend_epi32(broadcast(table[static_cast<u32>(s01)]),
                                         broadcast(table[s01 >> 32]), 0x02);
  const __m256i e23 = _mm256_blend_epi32(broadcast(table[static_cast<u32>(s23)]),
                                         broadcast(table[s23 >> 32]), 0x08);
  const __m256i e45 = _mm256_blend_epi32(broadcast(table[static_cast<u32>(s45)]),
                                         broadcast(table[s45 >> 32]), 0x20);
  const __m256i e67 = _mm256_blend_epi32(broadcast(table[static_cast<u32>(s67)]),
                                         broadcast(table[s67 >> 32]), 0x80);
  return _mm256_blend_epi32(_mm256_blend_epi32(e01, e23, 0x0C), _mm256_blend_epi32(e45, e67, 0xC0),
                            0xF0);
}

// Whole rounds in vectors while a round's words (8 bytes a lane at most, and the last load's 16)
// surely lie in the row; a stream that ends too early shows in decode_rest.
template <int kLanes>
const u8* decode_lanes(const u32* table, u32* states, const u8* words, const u8* end,
                       const u8* readable, i64 n, u8* symbols) {
  constexpr int kVectors = kLanes / 8;
  constexpr i64 per_round = kGroup * kLanes;
  const __m256i low12 = broadcast(0xFFF), top8 = broadcast(0xFF000000u);
  const __m256i low16 = broadcast(0xFFFF), sixteen = broadcast(16);
  __m256i x[kVectors];
  for (int v = 0; v < kVectors; ++v) x[v] = load_vector(states + 8 * v);
  i64 round = 0;
  for (; (round + 1) * per_round <= n && readable - words >= 2 * per_round + 16; ++round) {
    u8* const to = symbols + round * per_round;
#pragma GCC unroll 4
    for (int step = 0; step < kGroup; ++step) {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        const __m256i entry = look_up(table, _mm256_and_si256(x[v], low12));
        const __m256i freq = _mm256_and_si256(_mm256_srli_epi32(entry, 12), low12);
        const __m256i next =
            _mm256_add_epi32(_mm256_mullo_epi32(freq, _mm256_srli_epi32(x[v], kProbBits)),
                             _mm256_and_si256(entry, low12));
        const __m256i refill = _mm256_cmpeq_epi32(_mm256_min_epu32(next, low16), next);
        const u32 mask = static_cast<u32>(_mm256_movemask_ps(_mm256_castsi256_ps(refill)));
        const __m128i ahead = _mm_loadu_si128(reinterpret_cast<const __m128i*>(words));
        const __m256i read = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(ahead),
                                                 load_vector(kExpand.at[mask]));
        words += 2 * __builtin_popcount(mask);
        x[v] = _mm256_or_si256(_mm256_sllv_epi32(next, _mm256_and_si256(refill, sixteen)), read);
        // a lane's four symbols lie in the four bytes of one integer
        const __m256i symbol = _mm256_srli_epi32(_mm256_and_si256(entry, top8), 24 - 8 * step);
        const __m256i before = step == 0 ? _mm256_setzero_si256() : load_vector(to + 32 * v);
        store_vector(to + 32 * v, _mm256_or_si256(before, symbol));
      }
    }
  }
  for (int v = 0; v < kVectors; ++v) store_vector(states + 8 * v, x[v]);
  return decode_rest(kLanes, table, states, words, end, round, n, symbols);
}

const u8* decode(int lanes, const u32* table, u32* states, const u8* words, const u8* end,
                 const u8* readable, i64 n, u8* symbols) {
  const auto run = lanes == 64 ? decode_lanes<64> : decode_lanes<32>;
  return run(table, states, words, end, readable, n, symbols);
}

// What a step of eight lanes needs: reciprocals in the even lanes' and in the odd lanes' low halves,
// and packed words.
struct Entries {
  __m256i even, odd, packed;
};

// Entries of four symbols 8 bytes apart, each in 64 bits.
inline __m256i entries_of(const EncodeEntry* entries, const u8* symbols) {
  const auto one = [entries](u8 symbol) {
    return _mm256_set1_epi64x(load<long long>(reinterpret_cast<const u8*>(entries + symbol)));
  };
  const __m256i e01 = _mm256_blend_epi32(one(symbols[0]), one(symbols[8]), 0x0C);
  const __m256i e23 = _mm256_blend_epi32(one(symbols[16]), one(symbols[24]), 0xC0);
  return _mm256_blend_epi32(e01, e23, 0xF0);
}

// The table in memory.
struct Loads {
  const EncodeEntry* entries;

  explicit Loads(const EncodeTable& table) : entries(table.entries) {}
  Entries at(const u8* symbols, int step) const {
    const __m256i even = entries_of(entries, symbols + step);  // lanes 0, 2, 4, 6
    const __m256i odd = entries_of(entries, symbols + step + 4);
    return {even, odd, _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xAA)};
  }
};

// The table of a window of 16 symbols, in registers.
struct Window {
  __m256i reciprocal[2], packed[2], base;

  explicit Window(const EncodeTable& table)
      : base(_mm256_set1_epi8(static_cast<char>(table.base))) {
    u32 fields[2][16] = {};
    for (u32 i = 0; i < 16; ++i) {
      const u32 symbol = i == 0 ? 0 : table.base + i;
      if (symbol > 255) break;
      fields[0][i] = table.entries[symbol].reciprocal;
      fields[1][i] = table.entries[symbol].packed;
    }
    for (int half = 0; half < 2; ++half) {
      reciprocal[half] = load_vector(fields[0] + 8 * half);
      packed[half] = load_vector(fields[1] + 8 * half);
    }
  }

  static __m256i pick(const __m256i* table, __m256i index, __m256 upper) {
    const __m256i low = _mm256_permutevar8x32_epi32(table[0], index);
    const __m256i high = _mm256_permutevar8x32_epi32(table[1], index);
    return _mm256_castps_si256(
        _mm256_blendv_ps(_mm256_castsi256_ps(low), _mm256_castsi256_ps(high), upper));
  }

  Entries at(const u8* symbols, int step) const {
    const __m256i four = _mm256_subs_epu8(load_vector(symbols), base);  // of a lane, in its bytes
    const __m256i index = _mm256_srl_epi32(four, _mm_cvtsi32_si128(8 * step));
    const __m256 upper = _mm256_castsi256_ps(_mm256_slli_epi32(index, 28));
    const __m256i found = pick(reciprocal, index, upper);
    return {found, _mm256_srli_epi64(found, 32), pick(packed, index, upper)};
  }
};

template <int kLanes, bool kIncrements, class Lookup>
u8* encode_rounds(const EncodeTable& table, u32* states, const u8* symbols, i64 rounds, u8* words) {
  constexpr int kVectors = kLanes / 8;
  const __m256i low12 = broadcast(0xFFF), low13 = broadcast(0x1FFF), low4 = broadcast(15);
  const __m256i low16 = broadcast(0xFFFF), sixteen = broadcast(16);
  const Lookup lookup(table);
  __m256i x[kVectors];
  for (int v = 0; v < kVectors; ++v) x[v] = load_vector(states + 8 * v);
  for (i64 round = rounds - 1; round >= 0; --round) {
    for (int step = kGroup - 1; step >= 0; --step) {
      const u8* const from = symbols + round * kGroup * kLanes;
#pragma GCC unroll 8
      for (int v = kVectors - 1; v >= 0; --v) {
        const Entries entries = lookup.at(from + 32 * v, step);
        const __m256i packed = entries.packed;
        const __m256i less = _mm256_and_si256(_mm256_srli_epi32(packed, 13), low12);  // freq - 1
        const __m256i spill = _mm256_cmpgt_epi32(_mm256_srli_epi32(x[v], 20), less);
        const u32 mask = static_cast<u32>(_mm256_movemask_ps(_mm256_castsi256_ps(spill)));
        const __m256i low = _mm256_and_si256(x[v], low16);
        const __m128i eight =
            _mm_packus_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1));
        const __m128i order = _mm_load_si128(reinterpret_cast<const __m128i*>(kPack.at[mask]));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(words - 16), _mm_shuffle_epi8(eight, order));
        words -= 2 * __builtin_popcount(mask);
        const __m256i y = _mm256_srlv_epi32(x[v], _mm256_and_si256(spill, sixteen));
        const __m256i z = kIncrements ? _mm256_sub_epi32(y, _mm256_srai_epi32(packed, 31)) : y;
        const __m256i high_even = _mm256_srli_epi64(_mm256_mul_epu32(z, entries.even), 32);
        const __m256i high_odd = _mm256_mul_epu32(_mm256_srli_epi64(z, 32), entries.odd);
        const __m256i shift = _mm256_and_si256(_mm256_srli_epi32(packed, 25), low4);
        const __m256i q = _mm256_srlv_epi32(_mm256_blend_epi32(high_even, high_odd, 0xAA), shift);
        const __m256i grown = _mm256_mullo_epi32(q, _mm256_sub_epi32(low12, less));
        x[v] = _mm256_add_epi32(_mm256_add_epi32(y, _mm256_and_si256(packed, low13)), grown);
      }
    }
  }
  for (int v = 0; v < kVectors; ++v) store_vector(states + 8 * v, x[v]);
  return words;
}

template <int kLanes, bool kIncrements>
u8* encode_lanes(const EncodeTable& table, u32* states, const u8* symbols, i64 rounds, u8* words) {
  const auto run = table.few ? encode_rounds<kLanes, kIncrements, Window>
                             : encode_rounds<kLanes, kIncrements, Loads>;
  return run(table, states, symbols, rounds, words);
}

u8* encode(int lanes, const EncodeTable& table, u32* states, const u8* symbols, i64 n, u8* words) {
  const i64 per_round = kGroup * lanes, rounds = n / per_round;
  if (rounds * per_round < n) {
    words = encode_round(lanes, table, states, symbols + rounds * per_round,
                         n - rounds * per_round, words);
  }
  const auto run = lanes == 64
                       ? (table.increments ? encode_lanes<64, true> : encode_lanes<64, false>)
                       : (table.increments ? encode_lanes<32, true> : encode_lanes<32, false>);
  return run(table, states, symbols, rounds, words);
}

typedef u32 V __attribute__((vector_size(32)));

inline bool any(V v) { return _mm256_testz_si256((__m256i)v, (__m256i)v) == 0; }

// table[index[i]] of eight lanes, in 64 bits each: lanes 0, 2, 4, 6 and the others.
inline void look_up_pair(const u64* table, const u32* index, V& low, V& high) {
  const auto one = [&](int i) {
    return _mm256_set1_epi64x(static_cast<long long>(table[index[i]]));
  };
  const auto four = [&](int first) {
    return _mm256_blend_epi32(_mm256_blend_epi32(one(first), one(first + 2), 0x0C),
                              _mm256_blend_epi32(one(first + 4), one(first + 6), 0xC0), 0xF0);
  };
  const __m256i even = four(0), odd = four(1);
  low = (V)_mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xAA);
  high = (V)_mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xAA);
}

inline V look_up(const u32* table, const u32* index) {
  const auto one = [&](int i) { return broadcast(table[index[i]]); };
  const __m256i e01 = _mm256_blend_epi32(one(0), one(1), 0x02);
  const __m256i e23 = _mm256_blend_epi32(one(2), one(3), 0x08);
  const __m256i e45 = _mm256_blend_epi32(one(4), one(5), 0x20);
  const __m256i e67 = _mm256_blend_epi32(one(6), one(7), 0x80);
  return (V)_mm256_blend_epi32(_mm256_blend_epi32(e01, e23, 0x0C),
                               _mm256_blend_epi32(e45, e67, 0xC0), 0xF0);
}

inline V multiply_high(V a, V b) {
  const __m256i even = _mm256_srli_epi64(_mm256_mul_epu32((__m256i)a, (__m256i)b), 32);
  const __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64((__m256i)a, 32),
                                       _mm256_srli_epi64((__m256i)b, 32));
  return (V)_mm256_blend_epi32(even, odd, 0xAA);
}

inline V refill(V x, Words& from) {
  const __m256i next = (__m256i)x;
  const __m256i need = _mm256_cmpeq_epi32(_mm256_min_epu32(next, broadcast(0xFFFF)), next);
  const u32 mask = static_cast<u32>(_mm256_movemask_ps(_mm256_castsi256_ps(need)));
  const __m128i ahead = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from.words + from.at));
  const __m256i read =
      _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(ahead), load_vector(kExpand.at[mask]));
  from.at += 2 * static_cast<i64>(__builtin_popcountll(mask));
  return (V)_mm256_or_si256(_mm256_sllv_epi32(next, _mm256_and_si256(need, broadcast(16))), read);
}

// Half of the lanes under a mask to the words, which grow downward; 16 bytes below are overwritten.
inline V spill(V x, V which, u8*& words) {
  const __m256i state = (__m256i)x, low = _mm256_and_si256(state, broadcast(0xFFFF));
  const u32 mask = static_cast<u32>(_mm256_movemask_ps(_mm256_castsi256_ps((__m256i)which)));
  const __m128i eight =
      _mm_packus_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1));
  const __m128i order = _mm_load_si128(reinterpret_cast<const __m128i*>(kPack.at[mask]));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(words - 16), _mm_shuffle_epi8(eight, order));
  words -= 2 * __builtin_popcount(mask);
  return (V)_mm256_srlv_epi32(state, _mm256_and_si256((__m256i)which, broadcast(16)));
}

#include "contexts.inc"
#include "table.inc"

}  // namespace

const Isa& isa_avx2() { return kIsa; }

}  // namespace kv

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#endif  // __x86_64__
