// Plain C++: any processor, vectorised as far as the compiler does for the baseline target.
#include <limits>
#include <type_traits>

#include "isa.h"

#define KV_NAME "baseline"
#define KV_VECTOR_BYTES 16

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

// Without branches on the data, for whole rounds whose words are surely there.
template <int kLanes>
const u8* decode_lanes(const u32* table, u32* states, const u8* words, const u8* end,
                       const u8* readable, i64 n, u8* symbols) {
  constexpr i64 per_round = kGroup * kLanes;
  i64 round = 0;
  for (; (round + 1) * per_round <= n && readable - words >= 2 * per_round + 2; ++round) {
    u8* const to = symbols + round * per_round;
    for (int step = 0; step < kGroup; ++step) {
      for (int lane = 0; lane < kLanes; ++lane) {
        const u32 x = states[lane];
        const u32 entry = table[x & (kTotal - 1)];
        const u32 next = ((entry >> 12) & 0xFFF) * (x >> kProbBits) + (entry & 0xFFF);
        const u32 refilled = next << 16 | load<u16>(words);
        const bool refill = next < kLower;
        states[lane] = refill ? refilled : next;
        words += refill ? 2 : 0;
        to[kGroup * lane + step] = static_cast<u8>(entry >> 24);
      }
    }
  }
  return decode_rest(kLanes, table, states, words, end, round, n, symbols);
}

const u8* decode(int lanes, const DecodeTable& table, u32* states, const u8* words, const u8* end,
                 const u8* readable, i64 n, u8* symbols) {
  const auto run = lanes == 64 ? decode_lanes<64> : decode_lanes<32>;
  return run(table.slots, states, words, end, readable, n, symbols);
}

u8* encode(int lanes, const EncodeTable& table, u32* states, const u8* symbols, i64 n, u8* words) {
  const i64 per_round = kGroup * lanes;
  for (i64 first = (n - 1) / per_round * per_round; first >= 0; first -= per_round) {
    words = encode_round(lanes, table, states, symbols + first, n - first, words);
  }
  return words;
}

typedef u32 V __attribute__((vector_size(16)));

inline bool any(V v) { return (v[0] | v[1] | v[2] | v[3]) != 0; }

inline V look_up(const u32* table, const u32* index) {
  return V{table[index[0]], table[index[1]], table[index[2]], table[index[3]]};
}

// table[index[i]] of four lanes, in 64 bits each.
inline void look_up_pair(const u64* table, const u32* index, V& low, V& high) {
  for (int i = 0; i < 4; ++i) {
    const u64 pair = table[index[i]];
    low[i] = static_cast<u32>(pair);
    high[i] = static_cast<u32>(pair >> 32);
  }
}

inline V multiply_high(V a, V b) {
  for (int i = 0; i < 4; ++i) a[i] = static_cast<u32>(u64{a[i]} * b[i] >> 32);
  return a;
}

inline V refill(V x, Words& from) {
  for (int i = 0; i < 4; ++i) {
    const u32 refilled = x[i] << 16 | load<u16>(from.words + from.at);
    const bool need = x[i] < kLower;
    x[i] = need ? refilled : x[i];
    from.at += need ? 2 : 0;
  }
  return x;
}

// The words of lanes under a mask, below `words`, in ascending order; half of each is left.
inline V spill(V x, V mask, u8*& words) {
  for (int i = 3; i >= 0; --i) {
    if (mask[i] == 0) continue;
    words -= 2;
    store(words, static_cast<u16>(x[i]));
    x[i] >>= 16;
  }
  return x;
}

#include "contexts.inc"
#include "table.inc"

}  // namespace

const Isa& isa_baseline() { return kIsa; }

}  // namespace kv
