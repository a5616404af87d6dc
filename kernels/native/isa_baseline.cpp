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

const u8* decode(int lanes, const u32* table, u32* states, const u8* words, const u8* end,
                 const u8* readable, i64 n, u8* symbols) {
  const auto run = lanes == 64 ? decode_lanes<64> : decode_lanes<32>;
  return run(table, states, words, end, readable, n, symbols);
}

u8* encode(int lanes, const EncodeTable& table, u32* states, const u8* symbols, i64 n, u8* words) {
  const i64 per_round = kGroup * lanes;
  for (i64 first = (n - 1) / per_round * per_round; first >= 0; first -= per_round) {
    words = encode_round(lanes, table, states, symbols + first, n - first, words);
  }
  return words;
}

#include "table.inc"

}  // namespace

const Isa& isa_baseline() { return kIsa; }

}  // namespace kv
