#include "bitplane_row.h"

namespace kv {
namespace {

// Parts of a coded row that follow from its counts.
struct Parts {
  i64 plane_words, stream_words, escapes_nbytes;
  i64 escapes, end;  // offsets

  Parts(const u8* row, const BitplaneRow& layout, bool two_level)
      : plane_words(load<u32>(row + 4)),
        stream_words(two_level ? load<u32>(row + 8) : 0),
        escapes_nbytes(load<u32>(row + (two_level ? 12 : 8))) {
    const i64 stream = layout.planes + align16(4 * plane_words);
    escapes = stream + align16(4 * stream_words);
    end = escapes + align16(escapes_nbytes);
  }
  i64 count() const { return escapes_nbytes / kEscapeNbytes; }
};

// First escape, or first word of the stream, of tile t; of tile `tiles`: their number.
i64 begin_of(const u8* row, const BitplaneRow& layout, i64 t, bool two_level, bool words) {
  if (t == 0) return 0;
  const u8* const ends = row + layout.ends;
  return two_level ? load<u32>(ends + 8 * (t - 1) + (words ? 0 : 4)) : load<u32>(ends + 4 * (t - 1));
}

// Escapes of a tile, one after the other; false if one has no place.
bool sound_escapes(const u8* row, const Parts& parts, const Tile& tile, i64 begin, i64 end,
                   int exponent_bits) {
  const u8* const positions = row + parts.escapes;
  const u8* const values = positions + 2 * parts.count();
  i64 previous = -1;
  for (i64 i = begin; i < end; ++i) {
    const i64 position = load<u16>(positions + 2 * i);
    const i64 column = position / (2 * kSlots), slot = position % (2 * kSlots) / 2;
    if (position <= previous || column >= tile.columns ||
        2 * column + position % 2 >= tile.count(slot) || values[i] >> exponent_bits != 0) {
      return false;
    }
    previous = position;
  }
  return true;
}

// Everything that can be wrong with a row.
Fault check_row(const Call& call, const Bitplane& codec, i64 i) {
  const Plane& plane = call.plane;
  u8* const row = call.row(i);
  const Fault fault = check_prefix(call, i);
  if (fault != kSound) return fault;
  const i64 channels = plane.token_numel(), n = num_valid_of(row) * channels;
  if (row[0] == kRaw) {
    const i64 nbytes = load<u32>(row + 4);
    if (kPrefix + align16(nbytes) != call.row_size(i)) return kTiling;
    return nbytes == n * plane.itemsize ? kSound : kElements;
  }
  if (row[0] != kCoded) return kMode;
  const BitplaneRow layout(plane, codec, n);
  const Parts parts(row, layout, codec.two_level);
  if (parts.end != call.row_size(i)) return kTiling;
  if (n == 0) return kEmpty;
  if (parts.plane_words != layout.plane_words) return kPlanes;
  const int exponent_bits = kExponentBits[codec.format];
  if (call.isa->largest(row + kPrefix, channels) >> exponent_bits != 0) return kExponent;
  if (parts.escapes_nbytes % kEscapeNbytes != 0) return kEscapes;
  i64 words = 0, escapes = 0;
  for (i64 t = 0; t < layout.tiles; ++t) {
    const Tile tile = layout.tile(t, n, channels, nullptr, row);
    const i64 next = begin_of(row, layout, t + 1, codec.two_level, false);
    if (next < escapes || next > parts.count()) return kEnds;
    if (!sound_escapes(row, parts, tile, escapes, next, exponent_bits)) return kEscapes;
    escapes = next;
    if (!codec.two_level) continue;
    u32 counts[kTileColumns];
    call.isa->bitplane_count(tile.planes, tile.row_words, (layout.slots * 2 + 15) / 16,
                             tile.columns, counts);
    i64 count = 0;
    for (i64 column = 0; column < tile.columns; ++column) count += counts[column];
    words += (3 * count + 31) / 32;
    if (begin_of(row, layout, t + 1, true, true) != words) return kSecondCodes;
  }
  return escapes == parts.count() && words == parts.stream_words ? kSound : kEnds;
}

template <class Word>
void set_exponent(u8* element, u32 value, int mantissa_bits, int exponent_bits) {
  const u32 mask = ((1u << exponent_bits) - 1) << mantissa_bits;
  store(element, static_cast<Word>((load<Word>(element) & ~mask) | value << mantissa_bits));
}

void patch(const u8* row, const Parts& parts, const Tile& tile, i64 begin, i64 end, i64 size,
           int exponent_bits) {
  const u8* const positions = row + parts.escapes;
  const u8* const values = positions + 2 * parts.count();
  const int mantissa_bits = static_cast<int>(8 * size) - 1 - exponent_bits;
  for (i64 i = begin; i < end; ++i) {
    const i64 position = load<u16>(positions + 2 * i);
    const i64 column = position / (2 * kSlots), slot = position % (2 * kSlots) / 2;
    u8* const at =
        tile.elements + slot * tile.slot_nbytes + (2 * column + position % 2) * size;
    if (size == 1) set_exponent<u8>(at, values[i], mantissa_bits, exponent_bits);
    if (size == 2) set_exponent<u16>(at, values[i], mantissa_bits, exponent_bits);
    if (size == 4) set_exponent<u32>(at, values[i], mantissa_bits, exponent_bits);
  }
}

// A sound row to its block; a tile that does not lie in one piece goes through a buffer.
void write_block(const Call& call, const Bitplane& codec, i64 i, u8* bases) {
  const Plane& plane = call.plane;
  u8* const row = call.row(i);
  const i64 id = call.block_ids[i], channels = plane.token_numel(), size = plane.itemsize;
  const i64 n = num_valid_of(row) * channels;
  if (row[0] == kRaw) {
    copy_out(plane, id, 0, n, row + kPrefix);
  } else {
    const BitplaneRow layout(plane, codec, n);
    const Parts parts(row, layout, codec.two_level);
    std::memcpy(bases, row + kPrefix, static_cast<std::size_t>(channels));
    repeat_bases(bases, channels);
    const bool whole = plane.run() == plane.numel();
    alignas(64) u8 buffer[kTileElements * 4];
    alignas(64) u8 stream[kStreamNbytes + 8] = {};
    for (i64 t = 0; t < layout.tiles; ++t) {
      Tile tile = layout.tile(t, n, channels, bases, row);
      tile.elements = whole ? plane.block(id) + 2 * tile.first * size : buffer;
      tile.slot_nbytes = 2 * (whole ? layout.columns : kTileColumns) * size;
      tile.stream = stream;
      if (codec.two_level) {
        const i64 begin = begin_of(row, layout, t, true, true);
        const i64 words = begin_of(row, layout, t + 1, true, true) - begin;
        std::memcpy(stream, row + layout.stream + 4 * begin, static_cast<std::size_t>(4 * words));
      }
      call.isa->bitplane_unpack[codec.format][codec.two_level](tile);
      patch(row, parts, tile, begin_of(row, layout, t, codec.two_level, false),
            begin_of(row, layout, t + 1, codec.two_level, false), size,
            kExponentBits[codec.format]);
      if (whole) continue;
      for (i64 slot = 0; slot < layout.slots; ++slot) {
        copy_out(plane, id, 2 * (slot * layout.columns + tile.first), tile.count(slot),
                 buffer + slot * tile.slot_nbytes);
      }
    }
  }
  zero_out(plane, id, n, plane.numel() - n);
}

}  // namespace

i64 bitplane_decompress(const Call& call, const Bitplane& codec) {
  Damage damage;
  parallel_for(call.num_threads, call.n, [&](i64, i64 i) {
    if (damage.below(i)) return;
    const Fault fault = check_row(call, codec, i);
    if (fault != kSound) damage.report(i, fault);
  });
  if (damage.result() >= 0) return damage.result();
  const i64 each = bases_nbytes(call.plane.token_numel());
  parallel_for(call.num_threads, call.n, [&](i64 worker, i64 i) {
    write_block(call, codec, i, call.scratch + worker * each);
  });
  return -1;
}

}  // namespace kv
