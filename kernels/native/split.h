// split: exponents by rANS, sign and mantissa as they are; see formats/split.md. What the encoder
// and the decoder share.
#pragma once

#include "call.h"
#include "contexts.h"

namespace kv {

constexpr u8 kRaw = 0, kCoded = 1, kCentred = 2, kProfile = 3, kContext = 4;
constexpr i64 kTile = 4096;     // elements gathered or scattered at a time
constexpr i64 kHeadBytes = 256;  // first plane of the elements that have bits in the seeds
constexpr i64 kSlack = 64;       // room that the encoder's and packers' whole vectors need

struct FormatInfo {
  int exponent_bits, num_planes, widths[kMaxPlanes];

  // Fields of a group of 4 whose first plane rides in a lane's seed.
  int seeded() const { return widths[0] == 8 ? 2 : kGroup; }
};

inline constexpr FormatInfo kFormats[kNumFormats] = {
    {8, 1, {8, 0, 0}}, {5, 3, {8, 2, 1}}, {8, 3, {8, 8, 8}}, {4, 1, {4, 0, 0}}, {5, 2, {2, 1, 0}}};

// The low mantissa bits, which modes 3 and 4 store as they are: none of an fp8 element.
inline constexpr FormatInfo kLowFormats[kNumFormats] = {
    {8, 1, {4, 0, 0}}, {5, 3, {4, 2, 1}}, {8, 3, {8, 8, 4}}, {4, 0, {0, 0, 0}}, {5, 0, {0, 0, 0}}};

// Mantissa bits that modes 3 and 4 code.
inline u32 leading_bits(Format format) { return format == kE5m2 ? 2 : 3; }

// Where the planes of n elements lie in a raw part.
struct RawPart {
  i64 head;  // groups with bits in the seeds
  i64 plane_nbytes[kMaxPlanes] = {};
  i64 nbytes = 0;

  RawPart(const FormatInfo& format, i64 n, int lanes) {
    const i64 groups = (n + kGroup - 1) / kGroup;
    head = groups < lanes ? groups : lanes;
    for (int p = 0; p < format.num_planes; ++p) {
      const i64 fields = groups * kGroup - (p == 0 ? head * format.seeded() : 0);
      plane_nbytes[p] = (fields * format.widths[p] + 7) / 8;
      nbytes += plane_nbytes[p];
    }
  }
};

// Bytes of the part of a centred row that says where its channels lie.
inline i64 centres_nbytes(i64 channels) { return (channels + 3) / 4 + (channels + 7) / 8 + 1; }

// The seed of a group: its first 16 bits of the first plane. Planes, without what is in the seeds,
// to the raw part; returns where the part ends.
u32 seed_of(const FormatInfo& format, const u8* plane, i64 group);
u8* put_raw(const FormatInfo& format, const RawPart& part, u8* const* planes, u8* at);

// The first plane of the groups with bits in the seeds, whole again, from the seeds and `rest`.
void restore_head(const FormatInfo& format, const RawPart& part, const u32* states, const u8* rest,
                  u8* head);

// Modes 3 and 4, in split_tabled.cpp: the parts of `split_compress` and `split_decompress` above.
// Encoding writes a row where that is shorter than the row that is there.
i64 tabled_encode_scratch(const Plane& plane);
void encode_tabled_row(const Call& call, Format format, SplitModel model, const Contexts& contexts,
                       i64 i, u8* scratch);
Fault decode_tabled_row(const Call& call, Format format, const Contexts& contexts, i64 i,
                        u8* scratch);
void write_tabled_block(const Call& call, Format format, const Contexts& contexts, i64 i,
                        const u8* scratch);

inline i64 round_up(i64 nbytes) { return (nbytes + 63) & ~i64{63}; }

}  // namespace kv
