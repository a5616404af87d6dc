// Where the parts of a coded bitplane row lie; formats/bitplane.md.
#pragma once

#include "bitplane.h"
#include "call.h"

namespace kv {

constexpr u8 kRaw = 0, kCoded = 1;
constexpr int kExponentBits[kNumFormats] = {8, 5, 8, 4, 5};
constexpr int kFieldWidths[kNumFormats][kMaxPlanes] = {
    {8, 0, 0}, {8, 2, 1}, {8, 8, 8}, {4, 0, 0}, {2, 1, 0}};

inline i64 round_up(i64 nbytes) { return (nbytes + 63) & ~i64{63}; }

// Bases of all channels, then of as many more as the columns of a tile reach past the last.
inline i64 bases_nbytes(i64 channels) { return round_up(channels + 2 * kTileColumns); }

inline void repeat_bases(u8* bases, i64 channels) {
  for (i64 i = 0; i < 2 * kTileColumns; ++i) bases[channels + i] = bases[i];
}

struct BitplaneRow {
  i64 columns, tiles, slots, plane_words, ends_nbytes;
  i64 ends, planes, stream;  // offsets; the bases stand behind the prefix

  // n: valid elements.
  BitplaneRow(const Plane& plane, const Bitplane& codec, i64 n)
      : columns(4 * ((plane.numel() + 127) / 128)),
        tiles((columns + kTileColumns - 1) / kTileColumns),
        slots((n + 2 * columns - 1) / (2 * columns)),
        plane_words(rows(2)) {
    if (!codec.two_level) plane_words += rows(1);
    for (const int width : kFieldWidths[codec.format]) plane_words += rows(width);
    plane_words *= columns;
    ends_nbytes = tiles * (codec.two_level ? 8 : 4);
    ends = kPrefix + align16(plane.token_numel());
    planes = ends + align16(ends_nbytes);
    stream = planes + align16(4 * plane_words);
  }

  Tile tile(i64 t, i64 n, i64 channels, const u8* bases, u8* row) const {
    Tile tile;
    tile.first = t * kTileColumns;
    tile.columns = columns - tile.first < kTileColumns ? columns - tile.first : kTileColumns;
    tile.row_words = columns;
    tile.n = n;
    tile.channels = channels;
    tile.bases = bases;
    tile.planes = row + planes + 4 * tile.first;
    return tile;
  }

 private:
  i64 rows(int width) const { return (slots * width + 15) / 16; }
};

}  // namespace kv
