// fp8: codes and fp32 scales; see formats/fp8.md. Rows are checked before the first block is
// written.
#include "call.h"

namespace kv {
namespace {

constexpr float kLargest[kNumTargets] = {448.0f, 57344.0f};
constexpr float kMinScale = 0x1p-100f;
constexpr float kMinPower = 1e-4f;
constexpr u32 kNan = 0x7FC00000;

float as_float(u32 bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// Per worker: a token's head or a column side by side, codes of a column, the largest magnitudes.
i64 run_scratch(const Plane& plane) {
  const i64 longest = plane.head_dim > plane.block_size ? plane.head_dim : plane.block_size;
  return align16(longest * plane.itemsize);
}

i64 worker_scratch(const Plane& plane) {
  const i64 most = plane.block_size > plane.num_heads ? plane.block_size : plane.num_heads;
  return run_scratch(plane) + align16(plane.block_size) + align16(4 * most);
}

// Whether every element of a head has a scale of its own.
bool by_column(const Plane& plane, const Fp8& fp8) { return fp8.dims == 1 && plane.head_dim > 1; }

// The elements of a token's head: where they are, or gathered into `buffer`.
const u8* elements(const Plane& plane, i64 id, i64 token, i64 head, u8* buffer) {
  if (plane.packed_heads()) return plane.at(id, token, head, 0);
  const i64 first = (token * plane.num_heads + head) * plane.head_dim;
  copy_in(plane, id, first, plane.head_dim, buffer);
  return buffer;
}

// Scale s of a row.
float read_scale(const Fp8& fp8, const u8* scales, i64 s) {
  if (fp8.given != nullptr) return fp8.given[s];
  if (!fp8.power) return load<float>(scales + 4 * s);
  const u32 power = scales[s];
  return as_float(power == 0 ? 0x400000 : power == 255 ? kNan : power << 23);
}

// Measures scale s, writes it to the row and returns it.
float put_scale(const Fp8& fp8, u32 amax_bits, u8* scales, i64 s) {
  const float scale = as_float(amax_bits) / kLargest[fp8.target];
  if (fp8.power) {
    const float least = scale > kMinPower ? scale : kMinPower;
    u32 bits;
    std::memcpy(&bits, &least, sizeof(bits));
    scales[s] = static_cast<u8>((bits + 0x7FFFFF) >> 23);
    return read_scale(fp8, scales, s);
  }
  const float kept = amax_bits == 0 ? 1.0f : scale > kMinScale ? scale : kMinScale;
  store(scales + 4 * s, kept);
  return kept;
}

void encode_columns(const Call& call, const Fp8& fp8, i64 i, u8* scratch, u8* codes, u8* scales) {
  const Plane& plane = call.plane;
  const i64 id = call.block_ids[i], valid = call.valid(i), size = plane.itemsize;
  u8* const column = scratch;
  u8* const found = scratch + run_scratch(plane);
  for (i64 head = 0; head < plane.num_heads; ++head) {
    for (i64 dim = 0; dim < plane.head_dim; ++dim) {
      for (i64 token = 0; token < valid; ++token) {
        copy_run(column + token * size, plane.at(id, token, head, dim), size);
      }
      const u32 amax = call.isa->amax[fp8.source](column, valid);
      const float scale = put_scale(fp8, amax, scales, head * plane.head_dim + dim);
      call.isa->quantize[fp8.source][fp8.target](column, valid, scale, found);
      for (i64 token = 0; token < valid; ++token) {
        codes[token * plane.token_numel() + head * plane.head_dim + dim] = found[token];
      }
    }
  }
}

void encode_heads(const Call& call, const Fp8& fp8, i64 i, u8* scratch, u8* codes, u8* scales) {
  const Plane& plane = call.plane;
  const i64 id = call.block_ids[i], valid = call.valid(i), size = plane.itemsize;
  const auto quantize = call.isa->quantize[fp8.source][fp8.target];
  const auto amax = call.isa->amax[fp8.source];
  const bool own = fp8.given == nullptr && fp8.per_token && fp8.heads == 1;  // a scale a run
  if (fp8.given == nullptr && !own) {
    u8* const most = scratch + run_scratch(plane) + align16(plane.block_size);  // u32 [count]
    const i64 count = fp8.per_token ? valid : fp8.num_scales(plane);
    std::memset(most, 0, static_cast<std::size_t>(4 * count));
    for (i64 token = 0; token < valid; ++token) {
      for (i64 head = 0; head < plane.num_heads; ++head) {
        const u32 found = amax(elements(plane, id, token, head, scratch), plane.head_dim);
        u8* const at = most + 4 * fp8.index(plane, token, head, 0);
        if (found > load<u32>(at)) store(at, found);
      }
    }
    for (i64 s = 0; s < count; ++s) put_scale(fp8, load<u32>(most + 4 * s), scales, s);
  }
  for (i64 token = 0; token < valid; ++token) {
    for (i64 head = 0; head < plane.num_heads; ++head) {
      const u8* const from = elements(plane, id, token, head, scratch);
      const i64 first = (token * plane.num_heads + head) * plane.head_dim;
      for (i64 dim = 0; dim < plane.head_dim; dim += fp8.dims) {
        const u8* const run = from + dim * size;
        const i64 s = fp8.index(plane, token, head, dim);
        const float scale = own ? put_scale(fp8, amax(run, fp8.dims), scales, s)
                                : read_scale(fp8, scales, s);
        quantize(run, fp8.dims, scale, codes + first + dim);
      }
    }
  }
}

void encode_block(const Call& call, const Fp8& fp8, i64 i, u8* scratch) {
  const Plane& plane = call.plane;
  const i64 valid = call.valid(i), scales_nbytes = align16(fp8.scales_nbytes(plane));
  u8* const row = call.row(i);
  u8* const codes = row + kPrefix;
  u8* const scales = codes + align16(plane.numel());
  write_prefix(row, 0, valid);
  std::memset(scales, 0, static_cast<std::size_t>(scales_nbytes));
  const auto encode = by_column(plane, fp8) ? encode_columns : encode_heads;
  encode(call, fp8, i, scratch, codes, scales);
  const i64 used = valid * plane.token_numel();
  std::memset(codes + used, 0, static_cast<std::size_t>(align16(plane.numel()) - used));
  call.set_row_size(i, scales + scales_nbytes - row);
}

void decode_columns(const Call& call, const Fp8& fp8, i64 i, u8* scratch) {
  const Plane& plane = call.plane;
  const i64 id = call.block_ids[i], valid = num_valid_of(call.row(i)), size = plane.itemsize;
  const u8* const codes = call.row(i) + kPrefix;
  const u8* const scales = codes + align16(plane.numel());
  u8* const column = scratch;
  u8* const found = scratch + run_scratch(plane);
  for (i64 head = 0; head < plane.num_heads; ++head) {
    for (i64 dim = 0; dim < plane.head_dim; ++dim) {
      const i64 channel = head * plane.head_dim + dim;
      for (i64 token = 0; token < valid; ++token) {
        found[token] = codes[token * plane.token_numel() + channel];
      }
      const float scale = read_scale(fp8, scales, channel);
      call.isa->dequantize[fp8.source][fp8.target](found, valid, scale, column);
      for (i64 token = 0; token < valid; ++token) {
        copy_run(plane.at(id, token, head, dim), column + token * size, size);
      }
    }
  }
}

void decode_heads(const Call& call, const Fp8& fp8, i64 i, u8* buffer) {
  const Plane& plane = call.plane;
  const auto dequantize = call.isa->dequantize[fp8.source][fp8.target];
  const i64 id = call.block_ids[i], valid = num_valid_of(call.row(i)), size = plane.itemsize;
  const u8* const codes = call.row(i) + kPrefix;
  const u8* const scales = codes + align16(plane.numel());
  for (i64 token = 0; token < valid; ++token) {
    for (i64 head = 0; head < plane.num_heads; ++head) {
      const i64 first = (token * plane.num_heads + head) * plane.head_dim;
      u8* const to = plane.packed_heads() ? plane.at(id, token, head, 0) : buffer;
      for (i64 dim = 0; dim < plane.head_dim; dim += fp8.dims) {
        const float scale = read_scale(fp8, scales, fp8.index(plane, token, head, dim));
        dequantize(codes + first + dim, fp8.dims, scale, to + dim * size);
      }
      if (!plane.packed_heads()) copy_out(plane, id, first, plane.head_dim, buffer);
    }
  }
}

void decode_block(const Call& call, const Fp8& fp8, i64 i, u8* scratch) {
  const Plane& plane = call.plane;
  (by_column(plane, fp8) ? decode_columns : decode_heads)(call, fp8, i, scratch);
  const i64 used = num_valid_of(call.row(i)) * plane.token_numel();
  zero_out(plane, call.block_ids[i], used, plane.numel() - used);
}

}  // namespace

i64 fp8_scratch(const Plane& plane, i64 num_threads) { return num_threads * worker_scratch(plane); }

i64 fp8_row_nbytes(const Plane& plane, const Fp8& fp8) {
  return kPrefix + align16(plane.numel()) + align16(fp8.scales_nbytes(plane));
}

void fp8_compress(const Call& call, const Fp8& fp8) {
  parallel_for(call.num_threads, call.n, [&](i64 worker, i64 i) {
    encode_block(call, fp8, i, call.scratch + worker * worker_scratch(call.plane));
  });
}

i64 fp8_decompress(const Call& call, const Fp8& fp8) {
  const i64 expected = fp8_row_nbytes(call.plane, fp8);
  for (i64 i = 0; i < call.n; ++i) {
    Fault fault = check_prefix(call, i);
    if (fault == kSound && call.row(i)[0] != 0) fault = kMode;
    if (fault == kSound && call.row_size(i) != expected) fault = kTiling;
    if (fault != kSound) return i << 8 | fault;
  }
  parallel_for(call.num_threads, call.n, [&](i64 worker, i64 i) {
    decode_block(call, fp8, i, call.scratch + worker * worker_scratch(call.plane));
  });
  return -1;
}

}  // namespace kv
