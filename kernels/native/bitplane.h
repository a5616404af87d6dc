// bitplane: exponent codes of a fixed width in vertical planes; see formats/bitplane.md. What the
// encoder, the decoder and the loops of every instruction set share.
#pragma once

#include "common.h"

namespace kv {

constexpr i64 kSlots = 16, kTileColumns = 256;
constexpr i64 kTileElements = 2 * kSlots * kTileColumns;
constexpr i64 kEscapeNbytes = 3;  // position u16, exponent u8
constexpr i64 kStreamNbytes = kTileElements * 3 / 8;  // second codes of a tile, at most

// One tile of one row on its way in or out.
struct Tile {
  i64 first, columns;     // columns [first, first + columns)
  i64 row_words;          // W
  i64 n;                  // valid elements of the block
  i64 channels;
  const u8* bases;        // [channels + 2 * kTileColumns], repeating
  u8* elements;           // of slot 0, the tile's first column
  i64 slot_nbytes;        // from a slot's elements to the next one's
  u8* planes;             // of the row; words of its first column
  u32 escaped[kTileColumns];  // bits 2 * slot + half; written by pack only
  u32 more[kTileColumns];     // as escaped: elements with a second code
  const u8* stream;           // [kStreamNbytes + 8] second codes, read by unpack only

  i64 slots() const { return (n + 2 * row_words - 1) / (2 * row_words); }

  // Elements of a slot that are in the tile.
  i64 count(i64 slot) const {
    const i64 left = n - 2 * (slot * row_words + first);
    return left < 0 ? 0 : left < 2 * columns ? left : 2 * columns;
  }

  const u8* slot_bases(i64 slot) const {
    return bases + 2 * (slot * row_words + first) % channels;
  }
};

}  // namespace kv
