// A batch decodes in two passes, because the cache must stay as it was when any row is damaged, and
// damage to a stream shows only at its end. The first pass decodes every row's exponents into
// scratch, one byte an element, and finds all damage; the second joins them with sign and mantissa
// straight from the rows and writes the cache. The join is work either way, so the price is one
// byte an element written and read back, half of what a copy of a bf16 block would take.
#include "split.h"

namespace kv {

void restore_head(const FormatInfo& format, const RawPart& part, const u32* states, const u8* rest,
                  u8* head) {
  if (format.num_planes == 0) return;
  for (i64 group = 0; group < part.head; ++group) {
    if (format.widths[0] == 2) {
      *head++ = static_cast<u8>(states[group]);
      continue;
    }
    store(head, static_cast<u16>(states[group]));
    head += 2;
    if (format.widths[0] == 8) {
      std::memcpy(head, rest, 2);
      head += 2;
      rest += 2;
    }
  }
}

namespace {

// Per row: the first plane of the head, the exponents, and two arrays of a byte a channel; or, of a
// row of mode 3 or 4, the head and 16 bits an element.
i64 decode_scratch(const Plane& plane, SplitModel model) {
  const i64 each = is_tabled(model) ? 2 : 1;  // bytes of an element without its low bits
  return kHeadBytes + round_up(each * plane.numel() + kSlack) +
         2 * round_up(plane.token_numel() + kSlack);
}

// Joins elements [first, first + count) and writes them; planes begin at `first`.
void join_block(const Call& call, Format format, i64 id, i64 first, i64 count, const u8* exponents,
                const u8* const* planes) {
  const auto join = call.isa->join[format];
  const Plane& plane = call.plane;
  if (plane.run() == plane.numel()) {
    join(exponents, planes, count, plane.block(id) + first * plane.itemsize);
    return;
  }
  alignas(64) u8 tile[kTile * 4];
  for (i64 done = 0; done < count; done += kTile) {
    const i64 now = count - done < kTile ? count - done : kTile;
    const u8* at[kMaxPlanes] = {};
    for (int p = 0; p < kFormats[format].num_planes; ++p) {
      at[p] = planes[p] + done * kFormats[format].widths[p] / 8;
    }
    join(exponents + done, at, now, tile);
    copy_out(plane, id, first + done, now, tile);
  }
}

// The parts of a coded row, from its counts; nothing is read before `end` was checked.
struct Parts {
  i64 table_nbytes, words_nbytes, raw_nbytes;
  i64 table, centres, states, words, raw, end;  // offsets

  Parts(const u8* row, int lanes, i64 channels)
      : table_nbytes(load<u32>(row + 4)),
        words_nbytes(2 * i64{load<u32>(row + 8)}),
        raw_nbytes(load<u32>(row + 12)),
        table(kPrefix),
        centres(table + align16(table_nbytes)),
        states(centres + (row[0] == kCentred ? align16(centres_nbytes(channels)) : 0)),
        words(states + 4 * lanes),
        raw(words + align16(words_nbytes)),
        end(raw + align16(raw_nbytes)) {}
};

// First pass over a row: everything that can be wrong with it, and its exponents.
Fault decode_row(const Call& call, Format format, SplitModel kind, i64 i, u8* scratch) {
  const FormatInfo& info = kFormats[format];
  const Plane& plane = call.plane;
  const u8* const row = call.row(i);
  const Fault fault = check_prefix(call, i);
  if (fault != kSound) return fault;
  const i64 n = num_valid_of(row) * plane.token_numel();
  if (row[0] == kRaw) {
    const i64 nbytes = load<u32>(row + 4);
    if (kPrefix + align16(nbytes) != call.row_size(i)) return kTiling;
    return nbytes == n * plane.itemsize ? kSound : kElements;
  }
  if (row[0] != kCoded && (row[0] != kCentred || kind == kPlainModel)) return kMode;

  const int lanes = num_lanes(plane.numel() * plane.itemsize);
  const Parts parts(row, lanes, plane.token_numel());
  if (parts.end != call.row_size(i)) return kTiling;
  if (n == 0) return kEmpty;
  const RawPart part(info, n, lanes);
  if (parts.raw_nbytes != part.nbytes) return kRawPart;
  Model model;
  if (!read_table(row + parts.table, parts.table_nbytes, model)) return kTable;
  u32 states[kMaxLanes];
  std::memcpy(states, row + parts.states, static_cast<std::size_t>(4 * lanes));
  for (int lane = 0; lane < lanes; ++lane) {
    if (states[lane] < kLower) return kState;
  }

  u8* const exponents = scratch + kHeadBytes;
  const u8* const words = row + parts.words;
  const u8* const words_end = words + parts.words_nbytes;
  const u8* read = words;
  if (model.single()) {
    std::memset(exponents, model.symbols[0], static_cast<std::size_t>(n));
  } else {
    DecodeTable table;
    fill_decode_table(model, table);
    read = call.isa->decode(lanes, table, states, words, words_end, row + call.row_size(i), n,
                            exponents);
  }
  if (read != words_end) return kStream;
  for (int lane = 0; lane < lanes; ++lane) {
    if (states[lane] >> 16 != 1) return kStream;
  }
  const int limit = 1 << info.exponent_bits;
  if (model.symbols[model.size - 1] >= limit && call.isa->largest(exponents, n) >= limit) {
    return kExponent;
  }
  if (row[0] == kCentred) {
    const i64 channels = plane.token_numel();
    u8* const origins = exponents + round_up(plane.numel() + kSlack);
    u8* const work = origins + round_up(channels + kSlack);
    call.isa->unpack_origins(row + parts.centres, channels, work, origins);
    call.isa->add_origins(origins, num_valid_of(row), channels, static_cast<u8>(limit - 1),
                          exponents);
  }

  restore_head(info, part, states, row + parts.raw, scratch);
  return kSound;
}

// Second pass over a sound row.
void write_block(const Call& call, Format format, i64 i, const u8* scratch) {
  const FormatInfo& info = kFormats[format];
  const Plane& plane = call.plane;
  const u8* const row = call.row(i);
  const i64 id = call.block_ids[i], n = num_valid_of(row) * plane.token_numel();
  if (row[0] == kRaw) {
    copy_out(plane, id, 0, n, row + kPrefix);
  } else {
    const int lanes = num_lanes(plane.numel() * plane.itemsize);
    const Parts parts(row, lanes, plane.token_numel());
    const RawPart part(info, n, lanes);
    const i64 head = part.head * kGroup < n ? part.head * kGroup : n;
    const u8* const exponents = scratch + kHeadBytes;
    const u8* planes[kMaxPlanes] = {scratch};
    const u8* at = row + parts.raw + part.plane_nbytes[0];
    for (int p = 1; p < info.num_planes; ++p) {
      planes[p] = at;
      at += part.plane_nbytes[p];
    }
    join_block(call, format, id, 0, head, exponents, planes);
    planes[0] = row + parts.raw + (info.widths[0] == 8 ? 2 * part.head : 0);
    for (int p = 1; p < info.num_planes; ++p) planes[p] += head * info.widths[p] / 8;
    join_block(call, format, id, head, n - head, exponents + head, planes);
  }
  zero_out(plane, id, n, plane.numel() - n);
}

}  // namespace

i64 split_decompress_scratch(const Plane& plane, SplitModel model, i64 n) {
  return n * decode_scratch(plane, model);
}

i64 split_decompress(const Call& call, Format format, SplitModel model, const Contexts* contexts) {
  const i64 each = decode_scratch(call.plane, model);
  const u8 tabled = model == kProfileModel ? kProfile : model == kContextModel ? kContext : kRaw;
  const auto is_tabled_row = [&](i64 i) {
    return tabled != kRaw && call.row_size(i) >= kPrefix && call.row(i)[0] == tabled;
  };
  Damage damage;
  parallel_for(call.num_threads, call.n, [&](i64, i64 i) {
    if (damage.below(i)) return;
    u8* const scratch = call.scratch + i * each;
    const Fault fault = is_tabled_row(i) ? decode_tabled_row(call, format, *contexts, i, scratch)
                                         : decode_row(call, format, model, i, scratch);
    if (fault != kSound) damage.report(i, fault);
  });
  if (damage.result() >= 0) return damage.result();
  parallel_for(call.num_threads, call.n, [&](i64, i64 i) {
    const u8* const scratch = call.scratch + i * each;
    if (is_tabled_row(i)) {
      write_tabled_block(call, format, *contexts, i, scratch);
    } else {
      write_block(call, format, i, scratch);
    }
  });
  return -1;
}

}  // namespace kv
