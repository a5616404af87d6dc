#include "rans.h"

namespace kv {

void normalize(const u32* counts, u64 total, Model& model) {
  model.size = 0;
  i64 left = kTotal;
  for (int s = 0; s < 256; ++s) {
    if (counts[s] == 0) continue;
    const u64 rounded = (u64{counts[s]} * kTotal + total / 2) / total;
    model.symbols[model.size] = static_cast<u8>(s);
    model.freqs[model.size] = static_cast<u16>(rounded == 0 ? 1 : rounded);
    left -= model.freqs[model.size++];
  }
  while (left != 0) {
    int largest = 0;
    for (int i = 1; i < model.size; ++i) {
      if (model.freqs[i] > model.freqs[largest]) largest = i;
    }
    const i64 change = left > 0 ? left : -1;
    model.freqs[largest] = static_cast<u16>(model.freqs[largest] + change);
    left -= change;
  }
}

bool read_table(const u8* data, i64 nbytes, Model& model) {
  if (nbytes == 0 || nbytes % 3 != 0 || nbytes > 3 * 256) return false;
  model.size = static_cast<int>(nbytes / 3);
  u32 sum = 0;
  for (int i = 0; i < model.size; ++i) {
    model.freqs[i] = load<u16>(data + 2 * i);
    model.symbols[i] = data[2 * model.size + i];
    sum += model.freqs[i];
    if (model.freqs[i] == 0) return false;
    if (i > 0 && model.symbols[i] <= model.symbols[i - 1]) return false;
  }
  return sum == kTotal;
}

i64 write_table(const Model& model, u8* out) {
  std::memcpy(out, model.freqs, static_cast<std::size_t>(2 * model.size));
  std::memcpy(out + 2 * model.size, model.symbols, static_cast<std::size_t>(model.size));
  return 3 * model.size;
}

namespace {

void fill_few(const Model& model, DecodeTable& table) {
  u32 start = 0;
  for (int i = 0; i < 16; ++i) {
    const u32 freq = i < model.size ? model.freqs[i] : 0, below = start - 1;
    const int quarter = i / 4, third = i % 4 - 1;
    for (int half = 0; half < 32; half += 16) {
      table.freq_low[half + i] = static_cast<u8>(freq);
      table.freq_high[half + i] = static_cast<u8>(freq >> 8);
      table.start_low[half + i] = static_cast<u8>(start);
      table.start_high[half + i] = static_cast<u8>(start >> 8);
      table.symbols[half + i] = i < model.size ? model.symbols[i] : u8{0};
      if (third >= 0) table.thirds[third][half / 2 + quarter] = static_cast<u16>(below);
    }
    for (int k = 0; third < 0 && quarter > 0 && k < 16; ++k) {
      table.quarters[quarter - 1][k] = static_cast<u16>(below);
    }
    start += freq;
  }
}

}  // namespace

void fill_decode_table(const Model& model, DecodeTable& table) {
  u32* slots = table.slots;
  for (int i = 0; i < model.size; ++i) {
    const u32 freq = model.freqs[i];
    const u32 entry = u32{model.symbols[i]} << 24 | freq << 12;
    for (u32 bias = 0; bias < freq; ++bias) slots[bias] = entry | bias;
    slots += freq;
  }
  table.few = model.size <= 16;
  if (table.few) fill_few(model, table);
}

// With f <= 2^(s+1), reciprocal = ceil(2^(32+s) / f) and e = reciprocal * f - 2^(32+s) < f:
// x * reciprocal / 2^(32+s) exceeds x / f by x * e / (f * 2^(32+s)), which is below 1 / f, too
// little to reach the next integer, when x * e < 2^(32+s). As x < f * 2^20, that holds for s <= 10.
// For s = 11 it holds when f * e <= 2^23; otherwise the floor of the reciprocal with x + 1 is
// exact, since the remainder f - e is then below 2^23 / f. For f = 1, q = x - 1 and the bias makes
// up for it.
EncodeEntry encode_entry(u32 freq, u32 start) {
  if (freq == 1) return {0xFFFFFFFFu, start + kTotal - 1};
  u32 shift = 0;
  while ((2u << shift) < freq) ++shift;
  const u64 one = u64{1} << (32 + shift);
  u64 reciprocal = (one + freq - 1) / freq;
  const u64 excess = reciprocal * freq - one;
  u32 inc = 0;
  if (excess * freq > u64{1} << (12 + shift)) {
    --reciprocal;
    inc = 1;
  }
  return {static_cast<u32>(reciprocal), start | inc << 13 | shift << 16 | (freq - 1) << 20};
}

void fill_encode_table(const Model& model, EncodeTable& table) {
  table.increments = false;
  u32 start = 0;
  for (int i = 0; i < model.size; ++i) {
    const EncodeEntry entry = encode_entry(model.freqs[i], start);
    table.entries[model.symbols[i]] = entry;
    table.increments |= (entry.packed >> 13 & 1) != 0;
    start += model.freqs[i];
  }
  const int first = model.symbols[0] == 0 ? 1 : 0;  // a model has at least two symbols here
  table.base = static_cast<u8>(model.symbols[first] - 1);
  table.windowed = model.symbols[model.size - 1] - table.base < 32;
  table.few = model.symbols[model.size - 1] - table.base < 16;
}

}  // namespace kv
