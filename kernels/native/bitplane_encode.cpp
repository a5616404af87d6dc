#include "bitplane.h"

#include "bitplane_row.h"

namespace kv {
namespace {

// Per worker: exponents, the block, repeating bases, and escapes while their place is unknown.
struct Scratch {
  u8 *exponents, *block, *bases, *positions, *values;

  Scratch(const Plane& plane, u8* at) {
    const i64 numel = plane.numel(), room = numel * plane.itemsize;
    exponents = at;
    block = exponents + round_up(numel);
    bases = block + round_up(room);
    positions = bases + bases_nbytes(plane.token_numel());
    values = positions + round_up(room);
  }
  static i64 nbytes(const Plane& plane) {
    const i64 numel = plane.numel(), room = numel * plane.itemsize;
    return round_up(numel) + 3 * round_up(room) + bases_nbytes(plane.token_numel());
  }
};

// What a row has grown to.
struct Growth {
  i64 words = 0, escapes = 0;

  i64 nbytes(const BitplaneRow& row) const {
    return row.stream + align16(4 * words) + align16(kEscapeNbytes * escapes);
  }
};

u32 element_of(const Tile& tile, i64 column, int bit) {
  return static_cast<u32>(2 * (bit / 2 * tile.row_words + tile.first + column) + bit % 2);
}

// Escapes of a tile; at most as many as the scratch has room for.
void put_escapes(const Tile& tile, const Scratch& scratch, i64 most, Growth& growth) {
  for (i64 column = 0; column < tile.columns; ++column) {
    for (u32 left = tile.escaped[column]; left != 0; left &= left - 1) {
      if (growth.escapes == most) return;
      const int bit = __builtin_ctz(left);
      store(scratch.positions + 2 * growth.escapes,
            static_cast<u16>(2 * kSlots * column + bit));
      scratch.values[growth.escapes++] = scratch.exponents[element_of(tile, column, bit)];
    }
  }
}

// Second codes of a tile, in whole words; null if they leave the row.
u8* put_stream(const Tile& tile, const Scratch& scratch, u8* at, const u8* end, Growth& growth) {
  i64 count = 0;
  for (i64 column = 0; column < tile.columns; ++column) {
    count += __builtin_popcount(tile.more[column]);
  }
  const i64 words = (3 * count + 31) / 32;
  if (4 * words > end - at) return nullptr;
  const u8 *bases[kSlots], *exponents[kSlots];
  for (i64 slot = 0; slot < tile.slots(); ++slot) {
    bases[slot] = tile.slot_bases(slot);
    exponents[slot] = scratch.exponents + 2 * (slot * tile.row_words + tile.first);
  }
  u64 bits = 0;
  int filled = 0;
  for (i64 column = 0; column < tile.columns; ++column) {
    for (u32 left = tile.more[column]; left != 0; left &= left - 1) {
      const int bit = __builtin_ctz(left);
      const i64 slot = bit / 2, i = 2 * column + bit % 2;
      const u32 d = (u32{exponents[slot][i]} - bases[slot][i]) & 15;
      bits |= u64{d == 3 ? 0 : d & 7} << filled;
      filled += 3;
      if (filled >= 32) {
        store(at, static_cast<u32>(bits));
        at += 4;
        bits >>= 32;
        filled -= 32;
      }
    }
  }
  if (filled > 0) {
    store(at, static_cast<u32>(bits));
    at += 4;
  }
  growth.words += words;
  return at;
}

// Fills in a coded row; false if it would not be shorter than `limit`.
bool encode_parts(const Call& call, const Bitplane& codec, i64 i, i64 n, i64 limit,
                  const Scratch& scratch) {
  const Plane& plane = call.plane;
  const i64 channels = plane.token_numel();
  const BitplaneRow row(plane, codec, n);
  if (row.stream >= limit) return false;
  u8* const to = call.row(i);
  const i64 id = call.block_ids[i];
  const bool whole = plane.run() == plane.numel();
  if (!whole) copy_in(plane, id, 0, n, scratch.block);
  u8* const block = whole ? plane.block(id) : scratch.block;

  call.isa->bitplane_exponents[codec.format](block, n, scratch.exponents);
  const i64 valid = call.valid(i);
  const i64 reach = valid / codec.quantile() > 1 ? valid / codec.quantile() : 1;
  const int exponent_bits = kExponentBits[codec.format];
  call.isa->bitplane_levels(scratch.exponents, valid, channels, reach, exponent_bits,
                            scratch.bases);
  for (i64 c = 0; c < channels; ++c) {
    scratch.bases[c] = static_cast<u8>((scratch.bases[c] - codec.depth()) & ((1 << exponent_bits) - 1));
  }
  repeat_bases(scratch.bases, channels);
  std::memset(to + row.planes, 0, static_cast<std::size_t>(row.stream - row.planes));

  Growth growth;
  u8* stream = to + row.stream;
  const i64 most = n * plane.itemsize / kEscapeNbytes;
  for (i64 t = 0; t < row.tiles; ++t) {
    Tile tile = row.tile(t, n, channels, scratch.bases, to);
    tile.elements = block + 2 * tile.first * plane.itemsize;
    tile.slot_nbytes = 2 * row.columns * plane.itemsize;
    call.isa->bitplane_pack[codec.format][codec.two_level](tile);
    put_escapes(tile, scratch, most, growth);
    u8* end = to + row.ends + 4 * t;
    if (codec.two_level) {
      stream = put_stream(tile, scratch, stream, to + limit, growth);
      if (stream == nullptr) return false;
      end += 4 * t;
      store(end, static_cast<u32>(growth.words));
      end += 4;
    }
    store(end, static_cast<u32>(growth.escapes));
    if (growth.escapes == most || growth.nbytes(row) >= limit) return false;
  }

  write_prefix(to, kCoded, valid);
  store(to + 4, static_cast<u32>(row.plane_words));
  const u32 escapes = static_cast<u32>(kEscapeNbytes * growth.escapes);
  if (codec.two_level) store(to + 8, static_cast<u32>(growth.words));
  store(to + (codec.two_level ? 12 : 8), escapes);
  put_part(to + kPrefix, scratch.bases, channels);
  std::memset(to + row.ends + row.ends_nbytes, 0,
              static_cast<std::size_t>(align16(row.ends_nbytes) - row.ends_nbytes));
  u8* at = to + row.stream + 4 * growth.words;
  std::memset(at, 0, static_cast<std::size_t>(align16(4 * growth.words) - 4 * growth.words));
  at = to + row.stream + align16(4 * growth.words);
  std::memcpy(at, scratch.positions, static_cast<std::size_t>(2 * growth.escapes));
  std::memcpy(at + 2 * growth.escapes, scratch.values, static_cast<std::size_t>(growth.escapes));
  std::memset(at + escapes, 0, static_cast<std::size_t>(align16(escapes) - escapes));
  call.set_row_size(i, growth.nbytes(row));
  return true;
}

void encode_block(const Call& call, const Bitplane& codec, i64 i, u8* at) {
  const Plane& plane = call.plane;
  const i64 n = call.valid(i) * plane.token_numel(), raw_nbytes = n * plane.itemsize;
  const i64 limit = kPrefix + align16(raw_nbytes);
  if (n > 0 && encode_parts(call, codec, i, n, limit, Scratch(plane, at))) return;
  u8* const row = call.row(i);
  write_prefix(row, kRaw, call.valid(i));
  store(row + 4, static_cast<u32>(raw_nbytes));
  copy_in(plane, call.block_ids[i], 0, n, row + kPrefix);
  std::memset(row + kPrefix + raw_nbytes, 0,
              static_cast<std::size_t>(align16(raw_nbytes) - raw_nbytes));
  call.set_row_size(i, limit);
}

}  // namespace

i64 bitplane_scratch(const Plane& plane, i64 num_threads) {
  return num_threads * Scratch::nbytes(plane);
}

void bitplane_compress(const Call& call, const Bitplane& codec) {
  const i64 each = Scratch::nbytes(call.plane);
  parallel_for(call.num_threads, call.n, [&](i64 worker, i64 i) {
    encode_block(call, codec, i, call.scratch + worker * each);
  });
}

}  // namespace kv
