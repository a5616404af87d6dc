#include "contexts.h"

#include <algorithm>

namespace kv {
namespace {

constexpr u8 kDead = 255;  // class of a channel without elements

// Takes room for arrays one after the other, each at a multiple of 64 bytes.
struct Room {
  u8* base;
  i64 at = 0;

  template <class T>
  T* take(i64 count) {
    T* const found = reinterpret_cast<T*>(reinterpret_cast<std::uintptr_t>(base) +
                                          static_cast<std::uintptr_t>(at));
    at += (count * static_cast<i64>(sizeof(T)) + 63) & ~i64{63};
    return found;
  }
};

// starts [symbols + 1]; buckets of 2^shift slots.
void fill_slots(const u16* starts, u32 symbols, int shift, u64* slots) {
  const auto describe = [starts](u32 symbol) {
    return describe_symbol(starts[symbol], u32{starts[symbol + 1]} - starts[symbol], symbol);
  };
  u32 symbol = 0;
  for (u32 begin = 0; begin < kTotal; begin += 1u << shift) {
    while (starts[symbol + 1] <= begin) ++symbol;
    const u32 end = begin + (1u << shift), next = symbol + 1;
    u32 second = describe(symbol);
    if (starts[next] < end) {  // so there is a next one
      const bool more = next + 1 < symbols && starts[next + 1] < end;
      second = more ? describe_symbol(starts[next], 0, next) : describe(next);
    }
    *slots++ = describe(symbol) | u64{second} << 32;
  }
}

// Symbols past the first `symbols` of a table of `width` do not occur.
void fill_table(const u16* freqs, u32 symbols, u32 width, int shift, u16* starts, u64* slots,
                EncodeEntry* entries) {
  u32 start = 0;
  for (u32 symbol = 0; symbol < width; ++symbol) {
    starts[symbol] = static_cast<u16>(start);
    entries[symbol] = symbol < symbols ? encode_entry(freqs[symbol], start) : EncodeEntry{0, 0};
    start += freqs[symbol];
  }
  starts[width] = static_cast<u16>(start);
  fill_slots(starts, symbols, shift, slots);
}

}  // namespace

Contexts::Contexts(u8* memory, const i64* sizes)
    : channels(sizes[0]), live(sizes[1]), classes(sizes[2]), sign_classes(sizes[3]),
      padded((live + 63) & ~i64{63}) {
  const i64 k = classes, s = sign_classes;
  Room room{memory};
  head = room.take<i64>(4);
  number = room.take<u32>(padded);
  exponent_table = room.take<u32>(padded);
  mantissa_table = room.take<u32>(padded);
  sign_table = room.take<u32>(padded);
  lowest = room.take<u32>(padded);
  flip = room.take<u32>(padded);
  exponent_slots = room.take<u64>(k * kPrevious * (kTotal >> kExponentShift));
  mantissa_slots = room.take<u64>(k * kSymbols * (kTotal >> kMantissaShift));
  negative = room.take<u32>(s * kHistories * kBuckets);
  exponent_starts = room.take<u16>(k * kPrevious * (kSymbols + 1));
  mantissa_starts = room.take<u16>(k * kSymbols * (kLeads + 1));
  exponents = room.take<EncodeEntry>(k * kPrevious * kExponentStride);
  mantissas = room.take<EncodeEntry>(k * kSymbols * kLeads);
  signs = room.take<EncodeEntry>(s * kHistories * kBuckets * 2);
  nbytes = room.at;
}

i64 count_live(const ProfileTables& tables) {
  return tables.channels - std::count(tables.kind, tables.kind + tables.channels, kDead);
}

void fill_contexts(const ProfileTables& t, const Contexts& c) {
  c.head[0] = c.channels, c.head[1] = c.live, c.head[2] = c.classes, c.head[3] = c.sign_classes;
  i64 at = 0;
  for (i64 channel = 0; channel < t.channels; ++channel) {
    if (t.kind[channel] == kDead) continue;
    c.number[at] = static_cast<u32>(channel);
    c.exponent_table[at] = u32{t.kind[channel]} * kPrevious;
    c.mantissa_table[at] = u32{t.kind[channel]} * kSymbols;
    c.sign_table[at] = u32{t.sign_kind[channel]} * (kHistories * kBuckets);
    c.lowest[at] = u32{t.centre[channel]} - 16;
    c.flip[at++] = u32{t.flip[channel]} << (t.exponent_bits + t.leading);
  }
  for (u32* array :
       {c.number, c.exponent_table, c.mantissa_table, c.sign_table, c.lowest, c.flip}) {
    std::fill(array + at, array + c.padded, 0);
  }
  for (i64 i = 0; i < t.classes * kPrevious; ++i) {
    fill_table(t.exponents + i * kSymbols, kSymbols, kSymbols, kExponentShift,
               c.exponent_starts + i * (kSymbols + 1),
               c.exponent_slots + i * (kTotal >> kExponentShift), c.exponents + i * kExponentStride);
  }
  for (i64 i = 0; i < t.classes * kSymbols; ++i) {
    fill_table(t.mantissas + i * kLeads, 1u << t.leading, kLeads, kMantissaShift,
               c.mantissa_starts + i * (kLeads + 1),
               c.mantissa_slots + i * (kTotal >> kMantissaShift), c.mantissas + i * kLeads);
  }
  for (i64 i = 0; i < t.sign_classes * kHistories * kBuckets; ++i) {
    const u32 first = kTotal - t.signs[i];
    c.negative[i] = first;
    c.signs[2 * i] = encode_entry(first, 0);
    c.signs[2 * i + 1] = encode_entry(t.signs[i], first);
  }
}

}  // namespace kv
