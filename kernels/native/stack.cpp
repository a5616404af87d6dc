#include "stack.h"

#include "split.h"

namespace kv {

namespace {

constexpr u8 kPlainMode = 0, kCodedMode = 1;

bool is_float(const Part& part) { return part.coding >= kFloats; }
const FormatInfo& format_of(const Part& part) { return kFormats[part.coding - kFloats]; }
i64 itemsize(const Part& part) {
  constexpr i64 sizes[kNumFormats] = {2, 2, 4, 1, 1};
  return sizes[part.coding - kFloats];
}

i64 plane_nbytes(i64 n, int width) { return (n * width + 7) / 8; }

// Per worker: symbols and raw planes of all parts, and words: at most 12 bits a symbol.
struct Scratch {
  i64 symbols = 0, raw = 2 * kSlack, plane = 0;

  explicit Scratch(const Stack& stack) {
    for (i64 p = 0; p < stack.num_parts; ++p) {
      Part part = stack.parts[p];
      part.tokens = 0;  // all of it
      symbols += round_up(part.num_symbols(0) + kSlack);
      raw += part.raw_nbytes(0);
      const i64 planes = part.nbytes() + kMaxPlanes * kSlack;
      if (is_float(part) && planes > plane) plane = planes;
    }
    symbols = round_up(symbols), raw = round_up(raw + kSlack), plane = round_up(plane);
  }
  i64 nbytes() const { return symbols + raw + plane + 2 * symbols; }
};

// Symbols of a part's first n, and its raw planes to `raw`; returns where they end.
u8* split_part(const Call& call, const Part& part, const u8* data, i64 used, i64 n, u8* symbols,
               u8* raw, u8* buffer) {
  if (part.coding == kRawBytes) {
    std::memcpy(raw, data, static_cast<std::size_t>(used));
    return raw + used;
  }
  if (part.coding == kBytes) {
    std::memcpy(symbols, data, static_cast<std::size_t>(used));
    return raw;
  }
  if (!is_float(part)) {
    (part.coding == kE2m1 ? call.isa->unpack_e2m1 : call.isa->unpack4)(data, n, symbols);
    return raw;
  }
  const FormatInfo& format = format_of(part);
  u8* planes[kMaxPlanes] = {format.num_planes == 1 ? raw : buffer};  // several overlap at the seams
  for (int p = 1; p < format.num_planes; ++p) {
    planes[p] = planes[p - 1] + plane_nbytes(n, format.widths[p - 1]) + kSlack;
  }
  call.isa->split[part.coding - kFloats](data, n, symbols, planes);
  for (int p = 0; p < format.num_planes; ++p) {
    const i64 nbytes = plane_nbytes(n, format.widths[p]);
    if (planes[p] != raw) std::memcpy(raw, planes[p], static_cast<std::size_t>(nbytes));
    raw += nbytes;
  }
  return raw;
}

// Inverse of split_part: a part's used bytes from symbols and raw planes.
const u8* join_part(const Call& call, const Part& part, i64 used, i64 n, const u8* symbols,
                    const u8* raw, u8* data) {
  if (part.coding == kRawBytes || part.coding == kBytes) {
    const bool coded = part.coding == kBytes;
    std::memcpy(data, coded ? symbols : raw, static_cast<std::size_t>(used));
    return coded ? raw : raw + used;
  }
  if (!is_float(part)) {
    const i64 whole = n & ~i64{7};  // what packs in whole words, which would leave the part
    call.isa->pack4(symbols, whole, data);
    for (i64 i = whole; i < n; i += 2) {
      data[i / 2] = static_cast<u8>(symbols[i] | symbols[i + 1] << 4);
    }
    return raw;
  }
  const FormatInfo& format = format_of(part);
  const u8* planes[kMaxPlanes] = {};
  for (int p = 0; p < format.num_planes; ++p) {
    planes[p] = raw;
    raw += plane_nbytes(n, format.widths[p]);
  }
  call.isa->join[part.coding - kFloats](symbols, planes, n, data);
  return raw;
}

Fault check_row(const u8* row, i64 nbytes, i64 slot_nbytes, i64 block_size) {
  if (nbytes < kPrefix || nbytes > slot_nbytes) return kSlot;
  if (row[1] != 0) return kReserved;
  return num_valid_of(row) > block_size ? kNumValid : kSound;
}

Fault check_plain(const Stack& stack, const u8* row, i64 nbytes, i64 slot, i64 block_size) {
  const Fault fault = check_row(row, nbytes, slot, block_size);
  if (fault != kSound) return fault;
  if (row[0] != kPlainMode) return kMode;
  return nbytes == stack.plain_nbytes ? kSound : kTiling;
}

// A plain row without -0, whatever lay in its unused entries.
void put_plain(const Stack& stack, const u8* from, u8* to) {
  const i64 valid = num_valid_of(from);
  write_prefix(to, kPlainMode, valid);
  for (i64 p = 0; p < stack.num_parts; ++p) {
    const Part& part = stack.parts[p];
    const i64 used = part.used_nbytes(valid);
    u8* const data = to + part.begin;
    std::memcpy(data, from + part.begin, static_cast<std::size_t>(used));
    if (part.coding == kE2m1) {
      for (i64 i = 0; i < used; ++i) {
        const u32 low = data[i] & 15u, high = data[i] >> 4;
        data[i] = static_cast<u8>((low == 8 ? 0 : low) | (high == 8 ? 0 : high) << 4);
      }
    }
    std::memset(data + used, 0, static_cast<std::size_t>(align16(part.nbytes()) - used));
  }
}

// Row i of a call from a sound plain row.
void code_row(const Call& call, const Stack& stack, i64 i, const u8* plain, u8* scratch) {
  const i64 valid = num_valid_of(plain);
  const int lanes = stack.lanes;
  u8* const row = call.row(i);
  call.set_row_size(i, stack.plain_nbytes);
  if (valid == 0) return put_plain(stack, plain, row);

  const Scratch sizes(stack);
  u8* const raw = scratch + sizes.symbols;
  u8* const buffer = raw + sizes.raw;
  u8* const words_end = scratch + sizes.nbytes();
  Model models[kMaxParts];
  const u8* symbols[kMaxParts];
  u8 tables[kMaxParts + 768 * kMaxParts];
  u8 *next = scratch, *raw_end = raw;
  i64 num_tables = 0;
  for (i64 p = 0; p < stack.num_parts; ++p) {
    const Part& part = stack.parts[p];
    const i64 n = part.num_symbols(valid);
    raw_end = split_part(call, part, plain + part.begin, part.used_nbytes(valid), n, next, raw_end,
                         buffer);
    symbols[p] = next;
    next += round_up(n + kSlack);
    if (part.coding == kRawBytes) continue;
    u32 counts[256];
    (part.alphabet() <= 16 ? call.isa->count_few : call.isa->count)(symbols[p], n, counts);
    normalize(counts, static_cast<u64>(n), models[p]);
    tables[num_tables++] = static_cast<u8>(models[p].size - 1);
  }
  const i64 total = raw_end - raw, seeded = total < 2 * lanes ? total : 2 * lanes;
  std::memset(raw_end, 0, static_cast<std::size_t>(2 * lanes));
  u32 states[kMaxLanes];
  for (int lane = 0; lane < lanes; ++lane) states[lane] = kLower | load<u16>(raw + 2 * lane);
  u8* words = words_end;
  for (i64 p = stack.num_parts - 1; p >= 0; --p) {
    if (stack.parts[p].coding == kRawBytes || models[p].single()) continue;
    EncodeTable table;
    fill_encode_table(models[p], table);
    words = call.isa->encode(lanes, table, states, symbols[p], stack.parts[p].num_symbols(valid),
                             words);
  }
  i64 tables_nbytes = num_tables;
  for (i64 p = 0; p < stack.num_parts; ++p) {
    if (stack.parts[p].coding == kRawBytes) continue;
    tables_nbytes += write_table(models[p], tables + tables_nbytes);
  }
  const i64 words_nbytes = words_end - words;
  const i64 nbytes = kPrefix + align16(tables_nbytes) + 4 * lanes + align16(words_nbytes) +
                     align16(total - seeded);
  if (nbytes >= stack.plain_nbytes) return put_plain(stack, plain, row);
  write_prefix(row, kCodedMode, valid);
  store(row + 4, static_cast<u32>(tables_nbytes));
  store(row + 8, static_cast<u32>(words_nbytes / 2));
  store(row + 12, static_cast<u32>(total - seeded));
  u8* at = put_part(row + kPrefix, tables, tables_nbytes);
  at = put_part(at, reinterpret_cast<const u8*>(states), 4 * lanes);
  at = put_part(at, words, words_nbytes);
  put_part(at, raw + seeded, total - seeded);
  call.set_row_size(i, nbytes);
}

Fault encode_row(const Call& call, const Stack& stack, i64 i, u8* scratch) {
  const u8* const plain = stack.row(i);
  const Fault fault = check_plain(stack, plain, stack.nbytes[i * stack.nbytes_stride],
                                  stack.row_nbytes, call.plane.block_size);
  if (fault == kSound) code_row(call, stack, i, plain, scratch);
  return fault;
}

// The models of all coded parts, from the tables of a row.
Fault read_tables(const Stack& stack, const u8* data, i64 nbytes, Model* models) {
  i64 num_tables = 0, table = 0;
  for (i64 p = 0; p < stack.num_parts; ++p) num_tables += stack.parts[p].coding != kRawBytes;
  if (nbytes < num_tables) return kTable;
  i64 at = num_tables;
  for (i64 p = 0; p < stack.num_parts; ++p) {
    if (stack.parts[p].coding == kRawBytes) continue;
    const i64 size = 3 * (i64{data[table++]} + 1);
    Model& model = models[p];
    if (at + size > nbytes || !read_table(data + at, size, model)) return kTable;
    if (model.symbols[model.size - 1] >= stack.parts[p].alphabet()) return kTable;
    at += size;
  }
  return at == nbytes ? kSound : kTable;
}

Fault decode_row(const Call& call, const Stack& stack, i64 i, u8* scratch) {
  const u8* const row = call.row(i);
  const i64 nbytes = call.row_size(i), block_size = call.plane.block_size;
  u8* const plain = stack.row(i);
  stack.nbytes[i * stack.nbytes_stride] = static_cast<i32>(stack.plain_nbytes);
  const Fault fault = check_row(row, nbytes, call.row_nbytes, block_size);
  if (fault != kSound) return fault;
  if (row[0] == kPlainMode) {
    if (nbytes != stack.plain_nbytes) return kTiling;
    std::memcpy(plain, row, static_cast<std::size_t>(nbytes));
    return kSound;
  }
  if (row[0] != kCodedMode) return kMode;

  const int lanes = stack.lanes;
  const i64 valid = num_valid_of(row), tables_nbytes = load<u32>(row + 4);
  const i64 words_nbytes = 2 * i64{load<u32>(row + 8)}, raw_nbytes = load<u32>(row + 12);
  const u8* const states_at = row + kPrefix + align16(tables_nbytes);
  const i64 fixed = kPrefix + align16(tables_nbytes) + 4 * lanes;
  if (fixed + align16(words_nbytes) + align16(raw_nbytes) != nbytes) return kTiling;
  if (valid == 0) return kEmpty;
  i64 total = 0;
  for (i64 p = 0; p < stack.num_parts; ++p) total += stack.parts[p].raw_nbytes(valid);
  const i64 seeded = total < 2 * lanes ? total : 2 * lanes;
  if (raw_nbytes != total - seeded) return kRawPart;
  Model models[kMaxParts];
  const Fault bad_table = read_tables(stack, row + kPrefix, tables_nbytes, models);
  if (bad_table != kSound) return bad_table;
  u32 states[kMaxLanes];
  std::memcpy(states, states_at, static_cast<std::size_t>(4 * lanes));
  for (int lane = 0; lane < lanes; ++lane) {
    if (states[lane] < kLower) return kState;
  }

  const u8* words = states_at + 4 * lanes;
  const u8* const words_end = words + words_nbytes;
  const u8* symbols[kMaxParts];
  u8* next = scratch;
  for (i64 p = 0; p < stack.num_parts; ++p) {
    const i64 n = stack.parts[p].num_symbols(valid);
    symbols[p] = next;
    if (stack.parts[p].coding == kRawBytes) continue;
    if (models[p].single()) {
      std::memset(next, models[p].symbols[0], static_cast<std::size_t>(n));
    } else {
      DecodeTable table;
      fill_decode_table(models[p], table);
      words = call.isa->decode(lanes, table, states, words, words_end, row + nbytes, n, next);
      if (words == nullptr) return kStream;
    }
    next += round_up(n + kSlack);
  }
  if (words != words_end) return kStream;
  u8* const run = scratch + Scratch(stack).symbols;
  for (int lane = 0; lane < lanes; ++lane) {
    if (states[lane] >> 16 != 1) return kStream;
    store(run + 2 * lane, static_cast<u16>(states[lane]));
  }
  std::memcpy(run + seeded, words_end + align16(words_nbytes) - words_nbytes,
              static_cast<std::size_t>(raw_nbytes));
  write_prefix(plain, kPlainMode, valid);
  const u8* raw = run;
  for (i64 p = 0; p < stack.num_parts; ++p) {
    const Part& part = stack.parts[p];
    const i64 used = part.used_nbytes(valid);
    u8* const data = plain + part.begin;
    raw = join_part(call, part, used, part.num_symbols(valid), symbols[p], raw, data);
    std::memset(data + used, 0, static_cast<std::size_t>(align16(part.nbytes()) - used));
  }
  return kSound;
}

template <class Row>
i64 convert(const Call& call, const Stack& stack, const Row& row) {
  const i64 each = Scratch(stack).nbytes();
  Damage damage;
  parallel_for(call.num_threads, call.n, [&](i64 worker, i64 i) {
    if (damage.below(i)) return;
    const Fault fault = row(call, stack, i, call.scratch + worker * each);
    if (fault != kSound) damage.report(i, fault);
  });
  return damage.result();
}

}  // namespace

i64 Part::num_symbols(i64 valid) const {
  const i64 used = used_nbytes(valid);
  if (coding == kRawBytes) return 0;
  if (coding == kBytes) return used;
  return coding < kFloats ? 2 * used : used / itemsize(*this);
}

i64 Part::raw_nbytes(i64 valid) const {
  if (coding == kRawBytes) return used_nbytes(valid);
  if (coding < kFloats) return 0;
  const FormatInfo& format = format_of(*this);
  i64 sum = 0;
  for (int p = 0; p < format.num_planes; ++p) {
    sum += plane_nbytes(num_symbols(valid), format.widths[p]);
  }
  return sum;
}

int Part::alphabet() const {
  if (coding < kFloats) return coding == kBytes ? 256 : 16;
  return 1 << format_of(*this).exponent_bits;
}

i64 stack_scratch(const Stack& stack, i64 num_threads) {
  return num_threads * Scratch(stack).nbytes();
}

i64 stack_call_scratch(const Stack& stack, const Quantizer& quantizer, i64 num_threads) {
  const i64 coder = Scratch(stack).nbytes();
  return num_threads * (coder > quantizer.scratch_nbytes ? coder : quantizer.scratch_nbytes);
}

i64 stack_encode(const Call& call, const Stack& stack) { return convert(call, stack, encode_row); }

i64 stack_decode(const Call& call, const Stack& stack) { return convert(call, stack, decode_row); }

void stack_compress(const Call& call, const Stack& stack, const Quantizer& quantizer) {
  const i64 each = stack_call_scratch(stack, quantizer, 1);
  parallel_for(call.num_threads, call.n, [&](i64 worker, i64 i) {
    i32 size = 0;
    Call one = call;
    one.num_threads = one.n = 1;
    one.block_ids += i;
    if (one.num_valid != nullptr) one.num_valid += i;
    one.rows = stack.row(worker);
    one.row_stride = one.row_nbytes = stack.plain_nbytes;
    one.nbytes = &size;
    one.scratch = call.scratch + worker * each;
    quantizer.compress(one);
    code_row(call, stack, i, one.rows, one.scratch);
  });
}

i64 stack_decompress(const Call& call, const Stack& stack, const Quantizer& quantizer) {
  const i64 damage = stack_decode(call, stack);
  if (damage >= 0) return damage;
  Call plain = call;
  plain.rows = stack.plain;
  plain.row_stride = stack.stride;
  plain.row_nbytes = stack.row_nbytes;
  plain.nbytes = stack.nbytes;
  plain.nbytes_stride = stack.nbytes_stride;
  const i64 found = quantizer.decompress(plain);
  return found < 0 ? found : -2 - found;
}

}  // namespace kv
