// Types and constants that every file of the extension shares.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "rows are little-endian, and this code copies integers as they lie in memory"
#endif

namespace kv {

using u8 = std::uint8_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;
using i32 = std::int32_t;
using i64 = std::int64_t;

// Element types by their fields; the order is that of FORMATS in kernels/_native_call.py.
enum Format : i64 { kBf16, kFp16, kFp32, kE4m3, kE5m2, kNumFormats };

// Why a row is damaged; the texts stand in kernels/_native_call.py, in this order.
enum Fault : i64 {
  kSound,
  kSlot,       // its length leaves its slot
  kMode,       // a mode that does not exist
  kReserved,   // the reserved byte is not 0
  kNumValid,   // more valid tokens than the block has
  kTiling,     // the parts do not tile the row
  kElements,   // a raw part of another size than the valid tokens
  kEmpty,      // coded, but without valid tokens
  kTable,      // not a symbol table
  kState,      // an initial state below 2^16
  kStream,     // the words do not end where the states do
  kExponent,   // a symbol wider than the exponent field
  kRawPart,    // the raw part has the wrong length
  kScale,      // a scale that no writer writes
  kPlanes,     // bit planes of another size than the valid tokens
  kEnds,       // the ends of tiles do not ascend to the counts
  kEscapes,    // escapes that do not ascend, or without an element
  kSecondCodes,  // second codes that do not fill their tile's words
};

// Internal linkage here and in rans.h: each isa_*.cpp compiles its own copies for its target.
template <class T>
static inline T load(const u8* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}

template <class T>
static inline void store(u8* at, T value) {
  std::memcpy(at, &value, sizeof(T));
}

static inline i64 align16(i64 nbytes) { return (nbytes + 15) & ~i64{15}; }

}  // namespace kv
