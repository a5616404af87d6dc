// int4: codes, scales and zeros of small groups; see formats/int4.md. Rows are checked before the
// first block is written.
#include "int4.h"

#include <utility>

namespace kv {
namespace {

constexpr i64 kMetaSize[kNumSources] = {2, 2, 4};

i64 num_groups(i64 length, i64 group) { return (length + group - 1) / group; }

i64 num_metas(const Plane& plane, const Int4& int4) {
  if (int4.along_tokens) return num_groups(plane.block_size, int4.group) * plane.token_numel();
  return plane.block_size * plane.num_heads * num_groups(plane.head_dim, int4.group);
}

i64 codes_nbytes(const Plane& plane, const Int4& int4) {
  return align16(plane.numel() * int4.width / 8);
}

// Arrays of a worker, each one value per channel of a head.
struct Scratch {
  u8* buffer;            // a head's elements side by side
  u8 *lows, *highs;      // keys
  float *low, *high, *scale, *zero, *group_scale, *group_zero;

  // fp32 [head_dim], readable to the end of a kernel's last piece.
  static i64 channels(const Plane& plane) { return 4 * ((plane.head_dim + 31) / 32 * 32); }
  static i64 nbytes(const Plane& plane) {
    return 3 * align16(plane.head_dim * plane.itemsize) + 6 * channels(plane);
  }
  Scratch(const Plane& plane, u8* at) {
    const auto take = [&at](i64 nbytes) { return std::exchange(at, at + align16(nbytes)); };
    for (u8** part : {&buffer, &lows, &highs}) *part = take(plane.head_dim * plane.itemsize);
    for (float** part : {&low, &high, &scale, &zero, &group_scale, &group_zero}) {
      *part = reinterpret_cast<float*>(take(channels(plane)));
    }
  }
};

const u8* elements(const Plane& plane, i64 id, i64 token, i64 head, u8* buffer) {
  if (plane.packed_heads()) return plane.at(id, token, head, 0);
  copy_in(plane, id, (token * plane.num_heads + head) * plane.head_dim, plane.head_dim, buffer);
  return buffer;
}

// The value of each group for each of its channels.
void spread(const float* values, i64 n, i64 group, float* to) {
  for (i64 begin = 0; begin < n; begin += group, ++values) {
    const i64 end = begin + group < n ? begin + group : n;
    for (i64 i = begin; i < end; ++i) to[i] = *values;
  }
}

// What a block's parts are and where.
struct Parts {
  u8 *codes, *scales, *zeros;
  i64 head_codes, head_metas, meta_nbytes;

  Parts(const Plane& plane, const Int4& int4, u8* row)
      : codes(row + kPrefix), head_codes(plane.head_dim * int4.width / 8),
        meta_nbytes(align16(num_metas(plane, int4) * kMetaSize[int4.meta])) {
    head_metas = int4.along_tokens ? plane.head_dim : num_groups(plane.head_dim, int4.group);
    scales = codes + codes_nbytes(plane, int4);
    zeros = scales + meta_nbytes;
  }
};

constexpr i64 kBatch = 16;  // vectors whose groups fit the scratch of one vector's channels

// Groups of channels: ends of a batch of vectors first, so that `measure` has many groups at once.
void encode_tokens(const Call& call, const Int4& int4, i64 id, i64 valid, const Parts& parts,
                   const Scratch& s) {
  const Plane& plane = call.plane;
  const Int4Loops& loops = call.isa->int4;
  const i64 dim = plane.head_dim, groups = parts.head_metas, heads = plane.num_heads;
  const float top = static_cast<float>((1 << int4.width) - 1);
  for (i64 first = 0; first < valid * heads; first += kBatch) {
    const i64 end = first + kBatch < valid * heads ? first + kBatch : valid * heads;
    for (i64 v = first; v < end; ++v) {
      const u8* const from = elements(plane, id, v / heads, v % heads, s.buffer);
      const i64 at = (v - first) * groups;
      loops.group_ends[int4.source](from, dim, int4.group, s.low + at, s.high + at);
    }
    const i64 offset = first * groups * kMetaSize[int4.meta];
    loops.measure[int4.meta](s.low, s.high, (end - first) * groups, top, parts.scales + offset,
                             parts.zeros + offset, s.group_scale, s.group_zero);
    for (i64 v = first; v < end; ++v) {
      spread(s.group_scale + (v - first) * groups, dim, int4.group, s.scale);
      spread(s.group_zero + (v - first) * groups, dim, int4.group, s.zero);
      const u8* const from = elements(plane, id, v / heads, v % heads, s.buffer);
      loops.encode[int4.source](from, dim, s.scale, s.zero, static_cast<int>(int4.width),
                                parts.codes + v * parts.head_codes);
    }
  }
}

// Groups of tokens: every channel of a head has its own.
void encode_channels(const Call& call, const Int4& int4, i64 id, i64 valid, const Parts& parts,
                     const Scratch& s) {
  const Plane& plane = call.plane;
  const Int4Loops& loops = call.isa->int4;
  const i64 dim = plane.head_dim, heads = plane.num_heads;
  const float top = static_cast<float>((1 << int4.width) - 1);
  for (i64 first = 0; first < valid; first += int4.group) {
    const i64 end = first + int4.group < valid ? first + int4.group : valid;
    for (i64 head = 0; head < heads; ++head) {
      for (i64 token = first; token < end; ++token) {
        const u8* const from = elements(plane, id, token, head, s.buffer);
        loops.channel_ends[int4.source](from, dim, token == first, s.lows, s.highs);
      }
      loops.finish_ends[int4.source](s.lows, s.highs, dim, s.low, s.high);
      const i64 offset = (first / int4.group * heads + head) * dim * kMetaSize[int4.meta];
      loops.measure[int4.meta](s.low, s.high, dim, top, parts.scales + offset,
                               parts.zeros + offset, s.scale, s.zero);
      for (i64 token = first; token < end; ++token) {
        const u8* const from = elements(plane, id, token, head, s.buffer);
        loops.encode[int4.source](from, dim, s.scale, s.zero, static_cast<int>(int4.width),
                                  parts.codes + (token * heads + head) * parts.head_codes);
      }
    }
  }
}

void encode_block(const Call& call, const Int4& int4, i64 i, u8* memory) {
  const i64 valid = call.valid(i);
  const Parts parts(call.plane, int4, call.row(i));
  const Scratch scratch(call.plane, memory);
  u8* const end = parts.zeros + parts.meta_nbytes;
  write_prefix(call.row(i), 0, valid);
  std::memset(parts.codes, 0, static_cast<std::size_t>(end - parts.codes));
  const auto encode = int4.along_tokens ? encode_channels : encode_tokens;
  encode(call, int4, call.block_ids[i], valid, parts, scratch);
  call.set_row_size(i, end - call.row(i));
}

void decode_block(const Call& call, const Int4& int4, i64 i, u8* memory) {
  const Plane& plane = call.plane;
  const Int4Loops& loops = call.isa->int4;
  const i64 id = call.block_ids[i], valid = num_valid_of(call.row(i)), dim = plane.head_dim;
  const i64 heads = plane.num_heads, size = kMetaSize[int4.meta];
  const Scratch s(plane, memory);
  const Parts parts(plane, int4, call.row(i));
  const auto decode = [&](i64 vector) {
    const u8* const codes = parts.codes + vector * parts.head_codes;
    u8* const to = plane.packed_heads() ? plane.at(id, vector / heads, vector % heads, 0) : s.buffer;
    loops.decode[int4.source](codes, dim, s.scale, s.zero, static_cast<int>(int4.width), to);
    if (to == s.buffer) copy_out(plane, id, vector * dim, dim, s.buffer);
  };
  const auto metas = [&](i64 first, i64 count, float* scale, float* zero) {
    loops.meta_values[int4.meta](parts.scales + first * size, count, scale);
    loops.meta_values[int4.meta](parts.zeros + first * size, count, zero);
  };
  for (i64 first = 0; !int4.along_tokens && first < valid * heads; first += kBatch) {
    const i64 end = first + kBatch < valid * heads ? first + kBatch : valid * heads;
    const i64 groups = parts.head_metas;
    metas(first * groups, (end - first) * groups, s.group_scale, s.group_zero);
    for (i64 vector = first; vector < end; ++vector) {
      spread(s.group_scale + (vector - first) * groups, dim, int4.group, s.scale);
      spread(s.group_zero + (vector - first) * groups, dim, int4.group, s.zero);
      decode(vector);
    }
  }
  for (i64 first = 0; int4.along_tokens && first < valid; first += int4.group) {
    const i64 end = first + int4.group < valid ? first + int4.group : valid;
    for (i64 head = 0; head < heads; ++head) {
      metas((first / int4.group * heads + head) * dim, dim, s.scale, s.zero);
      for (i64 token = first; token < end; ++token) decode(token * heads + head);
    }
  }
  const i64 used = valid * plane.token_numel();
  zero_out(plane, id, used, plane.numel() - used);
}

}  // namespace

i64 int4_scratch(const Plane& plane, i64 num_threads) {
  return num_threads * Scratch::nbytes(plane);
}

i64 int4_row_nbytes(const Plane& plane, const Int4& int4) {
  const i64 metas = align16(num_metas(plane, int4) * kMetaSize[int4.meta]);
  return kPrefix + codes_nbytes(plane, int4) + 2 * metas;
}

void int4_compress(const Call& call, const Int4& int4) {
  parallel_for(call.num_threads, call.n, [&](i64 worker, i64 i) {
    encode_block(call, int4, i, call.scratch + worker * Scratch::nbytes(call.plane));
  });
}

i64 int4_decompress(const Call& call, const Int4& int4) {
  const i64 expected = int4_row_nbytes(call.plane, int4);
  for (i64 i = 0; i < call.n; ++i) {
    Fault fault = check_prefix(call, i);
    if (fault == kSound && call.row(i)[0] != 0) fault = kMode;
    if (fault == kSound && call.row_size(i) != expected) fault = kTiling;
    if (fault != kSound) return i << 8 | fault;
  }
  parallel_for(call.num_threads, call.n, [&](i64 worker, i64 i) {
    decode_block(call, int4, i, call.scratch + worker * Scratch::nbytes(call.plane));
  });
  return -1;
}

}  // namespace kv
