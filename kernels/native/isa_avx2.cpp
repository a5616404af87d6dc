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

inline __m256i sum(__m256i a, __m256i b, __m256i c) {
  return _mm256_add_epi8(_mm256_add_epi8(a, b), c);
}

// The index of a model's symbol from 16 slots of 12 bits, in both bytes.
inline __m256i index_of(const DecodeTable& table, __m256i slots) {
  const auto above = [slots](__m256i end) { return _mm256_cmpgt_epi16(slots, end); };
  const __m256i quarter = sum(above(load_vector(table.quarters[0])),  // negative, as `third`
                              above(load_vector(table.quarters[1])),
                              above(load_vector(table.quarters[2])));
  const __m256i two = _mm256_add_epi8(quarter, quarter);
  const __m256i at = _mm256_sub_epi8(_mm256_set1_epi16(0x0100), two);  // bytes of a quarter's 16 bits
  const auto end = [&table, at](int k) {
    return _mm256_shuffle_epi8(load_vector(table.thirds[k]), at);
  };
  const __m256i third = sum(above(end(0)), above(end(1)), above(end(2)));
  return _mm256_sub_epi8(_mm256_setzero_si256(), sum(two, two, third));
}

// As decode_lanes, for a model of at most 16 symbols: sixteen lanes at once find theirs by
// comparing, which takes fewer instructions than eight loads for eight lanes.
template <int kLanes>
const u8* decode_few(const DecodeTable& table, u32* states, const u8* words, const u8* end,
                     const u8* readable, i64 n, u8* symbols) {
  constexpr int kVectors = kLanes / 8;
  constexpr i64 per_round = kGroup * kLanes;
  const __m256i low12 = broadcast(0xFFF), low16 = broadcast(0xFFFF), sixteen = broadcast(16);
  const __m256i zero = _mm256_setzero_si256(), high_byte = broadcast(0xFF00FF00u);
  __m256i x[kVectors];
  for (int v = 0; v < kVectors; ++v) x[v] = load_vector(states + 8 * v);
  const auto advance = [&](__m256i& state, __m256i freq, __m256i bias) {
    const __m256i whole = _mm256_mullo_epi32(freq, _mm256_srli_epi32(state, kProbBits));
    const __m256i next = _mm256_add_epi32(whole, bias);
    const __m256i refill = _mm256_cmpeq_epi32(_mm256_min_epu32(next, low16), next);
    const u32 mask = static_cast<u32>(_mm256_movemask_ps(_mm256_castsi256_ps(refill)));
    const __m128i ahead = _mm_loadu_si128(reinterpret_cast<const __m128i*>(words));
    const __m256i read =
        _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(ahead), load_vector(kExpand.at[mask]));
    words += 2 * __builtin_popcount(mask);
    state = _mm256_or_si256(_mm256_sllv_epi32(next, _mm256_and_si256(refill, sixteen)), read);
  };
  __m256i even[kVectors / 2], first[kVectors / 2];  // symbols of steps 0 or 2; of 0 and 1
  i64 round = 0;
  for (; (round + 1) * per_round <= n && readable - words >= 2 * per_round + 16; ++round) {
    u8* const to = symbols + round * per_round;
#pragma GCC unroll 4
    for (int step = 0; step < kGroup; ++step) {
#pragma GCC unroll 4
      for (int pair = 0; pair < kVectors / 2; ++pair) {
        __m256i* const two = x + 2 * pair;
        const __m256i slots = _mm256_packus_epi32(_mm256_and_si256(two[0], low12),
                                                  _mm256_and_si256(two[1], low12));
        const __m256i index = index_of(table, slots);
        const auto look_up = [index, high_byte](const u8* low, const u8* high) {
          return _mm256_blendv_epi8(_mm256_shuffle_epi8(load_vector(low), index),
                                    _mm256_shuffle_epi8(load_vector(high), index), high_byte);
        };
        const __m256i freq = look_up(table.freq_low, table.freq_high);
        const __m256i bias = _mm256_sub_epi16(slots, look_up(table.start_low, table.start_high));
        const __m256i found = _mm256_shuffle_epi8(load_vector(table.symbols), index);
        advance(two[0], _mm256_unpacklo_epi16(freq, zero), _mm256_unpacklo_epi16(bias, zero));
        advance(two[1], _mm256_unpackhi_epi16(freq, zero), _mm256_unpackhi_epi16(bias, zero));
        // a lane's four symbols lie side by side
        const __m256i both = _mm256_blendv_epi8(even[pair], found, high_byte);
        if (step == 0 || step == 2) {
          even[pair] = found;
        } else if (step == 1) {
          first[pair] = both;
        } else {
          store_vector(to + 64 * pair, _mm256_unpacklo_epi16(first[pair], both));
          store_vector(to + 64 * pair + 32, _mm256_unpackhi_epi16(first[pair], both));
        }
      }
    }
  }
  for (int v = 0; v < kVectors; ++v) store_vector(states + 8 * v, x[v]);
  return decode_rest(kLanes, table.slots, states, words, end, round, n, symbols);
}

const u8* decode(int lanes, const DecodeTable& table, u32* states, const u8* words, const u8* end,
                 const u8* readable, i64 n, u8* symbols) {
  if (table.few) {
    const auto run = lanes == 64 ? decode_few<64> : decode_few<32>;
    return run(table, states, words, end, readable, n, symbols);
  }
  const auto run = lanes == 64 ? decode_lanes<64> : decode_lanes<32>;
  return run(table.slots, states, words, end, readable, n, symbols);
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
template <int kLanes>
struct Loads {
  const EncodeEntry* entries;
  const u8* from = nullptr;

  explicit Loads(const EncodeTable& table) : entries(table.entries) {}
  void begin(const u8* symbols) { from = symbols; }  // of a round
  Entries at(int step, int v) const {
    const u8* const symbols = from + 32 * v + step;
    const __m256i even = entries_of(entries, symbols);  // lanes 0, 2, 4, 6
    const __m256i odd = entries_of(entries, symbols + 4);
    return {even, odd, _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xAA)};
  }
};

// The table of a window of 16 symbols, by shuffles of bytes, for the four steps of a round at once.
template <int kLanes>
struct Window {
  static constexpr int vectors = kLanes / 8;
  __m256i bytes[2][4];  // of reciprocals and packed words, by index
  __m256i found[2][kGroup][vectors];
  __m256i base;

  explicit Window(const EncodeTable& table)
      : base(_mm256_set1_epi8(static_cast<char>(table.base))) {
    u8 each[2][4][16] = {};
    for (u32 i = 0; i < 16; ++i) {
      const u32 symbol = i == 0 ? 0 : table.base + i;
      if (symbol > 255) break;
      for (int k = 0; k < 4; ++k) {
        each[0][k][i] = static_cast<u8>(table.entries[symbol].reciprocal >> (8 * k));
        each[1][k][i] = static_cast<u8>(table.entries[symbol].packed >> (8 * k));
      }
    }
    for (int field = 0; field < 2; ++field) {
      for (int k = 0; k < 4; ++k) {
        bytes[field][k] = _mm256_broadcastsi128_si256(
            _mm_loadu_si128(reinterpret_cast<const __m128i*>(each[field][k])));
      }
    }
  }

  void begin(const u8* symbols) {
    // a lane's symbols lie side by side; here those of a step do
    const __m256i order = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    for (int v = 0; v < vectors; ++v) {
      const __m256i index =
          _mm256_shuffle_epi8(_mm256_subs_epu8(load_vector(symbols + 32 * v), base), order);
      for (int field = 0; field < 2; ++field) spread(field, index, v);
    }
  }

  void spread(int field, __m256i index, int v) {
    const auto pick = [&](int k) { return _mm256_shuffle_epi8(bytes[field][k], index); };
    const __m256i b0 = pick(0), b1 = pick(1), b2 = pick(2), b3 = pick(3);
    const __m256i low = _mm256_unpacklo_epi8(b0, b1), high = _mm256_unpackhi_epi8(b0, b1);
    const __m256i upper_low = _mm256_unpacklo_epi8(b2, b3), upper = _mm256_unpackhi_epi8(b2, b3);
    found[field][0][v] = _mm256_unpacklo_epi16(low, upper_low);
    found[field][1][v] = _mm256_unpackhi_epi16(low, upper_low);
    found[field][2][v] = _mm256_unpacklo_epi16(high, upper);
    found[field][3][v] = _mm256_unpackhi_epi16(high, upper);
  }

  Entries at(int step, int v) const {
    const __m256i reciprocal = found[0][step][v];
    return {reciprocal, _mm256_srli_epi64(reciprocal, 32), found[1][step][v]};
  }
};

template <int kLanes, bool kIncrements, template <int> class Lookup>
u8* encode_rounds(const EncodeTable& table, u32* states, const u8* symbols, i64 rounds, u8* words) {
  constexpr int kVectors = kLanes / 8;
  const __m256i low12 = broadcast(0xFFF), low13 = broadcast(0x1FFF), low4 = broadcast(15);
  const __m256i low16 = broadcast(0xFFFF), sixteen = broadcast(16), one = broadcast(1);
  Lookup<kLanes> lookup(table);
  __m256i x[kVectors];
  for (int v = 0; v < kVectors; ++v) x[v] = load_vector(states + 8 * v);
  for (i64 round = rounds - 1; round >= 0; --round) {
    lookup.begin(symbols + round * kGroup * kLanes);
    for (int step = kGroup - 1; step >= 0; --step) {
#pragma GCC unroll 8
      for (int v = kVectors - 1; v >= 0; --v) {
        const Entries entries = lookup.at(step, v);
        const __m256i packed = entries.packed;
        const __m256i less = _mm256_srli_epi32(packed, 20);  // freq - 1
        const __m256i spill = _mm256_cmpgt_epi32(_mm256_srli_epi32(x[v], 20), less);
        const u32 mask = static_cast<u32>(_mm256_movemask_ps(_mm256_castsi256_ps(spill)));
        const __m256i low = _mm256_and_si256(x[v], low16);
        const __m128i eight =
            _mm_packus_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1));
        const __m128i order = _mm_load_si128(reinterpret_cast<const __m128i*>(kPack.at[mask]));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(words - 16), _mm_shuffle_epi8(eight, order));
        words -= 2 * __builtin_popcount(mask);
        const __m256i y = _mm256_srlv_epi32(x[v], _mm256_and_si256(spill, sixteen));
        const __m256i inc = _mm256_and_si256(_mm256_srli_epi32(packed, 13), one);
        const __m256i z = kIncrements ? _mm256_add_epi32(y, inc) : y;
        const __m256i high_even = _mm256_srli_epi64(_mm256_mul_epu32(z, entries.even), 32);
        const __m256i high_odd = _mm256_mul_epu32(_mm256_srli_epi64(z, 32), entries.odd);
        const __m256i shift = _mm256_and_si256(_mm256_srli_epi32(packed, 16), low4);
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
