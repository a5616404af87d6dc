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

// Per worker: a token's head side by side; of channels the largest magnitudes, as patterns and as
// fp32 bits, and scales; of tokens or heads the largest magnitudes.
struct Scratch {
  u8 *run, *patterns, *most;
  float* scales;

  static i64 each(const Plane& plane) {
    const i64 tokens = plane.block_size, channels = plane.token_numel();
    return align16(4 * (tokens > channels ? tokens : channels));
  }
  static i64 run_nbytes(const Plane& plane) { return align16(plane.head_dim * plane.itemsize); }
  static i64 nbytes(const Plane& plane) { return run_nbytes(plane) + 3 * each(plane); }

  Scratch(const Plane& plane, u8* at)
      : run(at), patterns(run + run_nbytes(plane)), most(patterns + each(plane)),
        scales(reinterpret_cast<float*>(most + each(plane))) {}
};

// Whether every element of a head has a scale of its own.
bool by_channel(const Plane& plane, const Fp8& fp8) { return fp8.dims == 1 && plane.head_dim > 1; }

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

// The same for channels; `kept` [n] is what they are divided by.
void put_scales(const Fp8& fp8, const u32* amax_bits, i64 n, u8* scales, float* __restrict kept) {
  if (fp8.power) {
    for (i64 s = 0; s < n; ++s) kept[s] = put_scale(fp8, amax_bits[s], scales, s);
    return;
  }
  const float largest = kLargest[fp8.target];
  for (i64 s = 0; s < n; ++s) {
    const float scale = as_float(amax_bits[s]) / largest;
    kept[s] = amax_bits[s] == 0 ? 1.0f : scale > kMinScale ? scale : kMinScale;
  }
  std::memcpy(scales, kept, static_cast<std::size_t>(4 * n));
}

void encode_channels(const Call& call, const Fp8& fp8, i64 i, u8* memory, u8* codes, u8* scales) {
  const Plane& plane = call.plane;
  const Scratch scratch(plane, memory);
  const i64 id = call.block_ids[i], valid = call.valid(i), dim = plane.head_dim;
  const i64 channels = plane.token_numel();
  if (fp8.given == nullptr) {
    std::memset(scratch.patterns, 0, static_cast<std::size_t>(channels * plane.itemsize));
    for (i64 token = 0; token < valid; ++token) {
      for (i64 head = 0; head < plane.num_heads; ++head) {
        const u8* const from = elements(plane, id, token, head, scratch.run);
        u8* const most = scratch.patterns + head * dim * plane.itemsize;
        call.isa->channel_amax[fp8.source](from, dim, most);
      }
    }
    u32* const most = reinterpret_cast<u32*>(scratch.most);
    call.isa->widen_amax[fp8.source](scratch.patterns, channels, most);
    put_scales(fp8, most, channels, scales, scratch.scales);
  }
  const float* const each = fp8.given != nullptr ? fp8.given : scratch.scales;
  const auto quantize = call.isa->quantize_channels[fp8.source][fp8.target];
  for (i64 token = 0; token < valid; ++token) {
    for (i64 head = 0; head < plane.num_heads; ++head) {
      const u8* const from = elements(plane, id, token, head, scratch.run);
      quantize(from, dim, each + head * dim, codes + token * channels + head * dim);
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
    u8* const most = Scratch(plane, scratch).most;  // u32 [count]
    const i64 count = fp8.per_token ? valid : fp8.num_scales(plane);
    std::memset(most, 0, static_cast<std::size_t>(4 * count));
    for (i64 token = 0; token < valid; ++token) {
      for (i64 head = 0; head < plane.num_heads; ++head) {
        const u32 found = amax(elements(plane, id, token, head, scratch), plane.head_dim);
        u8* const at = most + 4 * fp8.first(plane, token, head);
        if (found > load<u32>(at)) store(at, found);
      }
    }
    for (i64 s = 0; s < count; ++s) put_scale(fp8, load<u32>(most + 4 * s), scales, s);
  }
  for (i64 token = 0; token < valid; ++token) {
    for (i64 head = 0; head < plane.num_heads; ++head) {
      const u8* const from = elements(plane, id, token, head, scratch);
      const i64 first = (token * plane.num_heads + head) * plane.head_dim;
      i64 s = fp8.first(plane, token, head);
      for (i64 dim = 0; dim < plane.head_dim; dim += fp8.dims, ++s) {
        const u8* const run = from + dim * size;
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
  const auto encode = by_channel(plane, fp8) ? encode_channels : encode_heads;
  encode(call, fp8, i, scratch, codes, scales);
  const i64 used = valid * plane.token_numel();
  std::memset(codes + used, 0, static_cast<std::size_t>(align16(plane.numel()) - used));
  call.set_row_size(i, scales + scales_nbytes - row);
}

void decode_channels(const Call& call, const Fp8& fp8, i64 i, u8* memory) {
  const Plane& plane = call.plane;
  const Scratch scratch(plane, memory);
  const auto dequantize = call.isa->dequantize_channels[fp8.source][fp8.target];
  const i64 id = call.block_ids[i], valid = num_valid_of(call.row(i)), dim = plane.head_dim;
  const i64 channels = plane.token_numel();
  const u8* const codes = call.row(i) + kPrefix;
  const u8* const scales = codes + align16(plane.numel());
  for (i64 s = 0; s < channels; ++s) scratch.scales[s] = read_scale(fp8, scales, s);
  for (i64 token = 0; token < valid; ++token) {
    for (i64 head = 0; head < plane.num_heads; ++head) {
      u8* const to = plane.packed_heads() ? plane.at(id, token, head, 0) : scratch.run;
      const i64 first = token * channels + head * dim;
      dequantize(codes + first, dim, scratch.scales + head * dim, to);
      if (to == scratch.run) copy_out(plane, id, first, dim, scratch.run);
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
      i64 s = fp8.first(plane, token, head);
      for (i64 dim = 0; dim < plane.head_dim; dim += fp8.dims, ++s) {
        const float scale = read_scale(fp8, scales, s);
        dequantize(codes + first + dim, fp8.dims, scale, to + dim * size);
      }
      if (!plane.packed_heads()) copy_out(plane, id, first, plane.head_dim, buffer);
    }
  }
}

void decode_block(const Call& call, const Fp8& fp8, i64 i, u8* scratch) {
  const Plane& plane = call.plane;
  (by_channel(plane, fp8) ? decode_channels : decode_heads)(call, fp8, i, scratch);
  const i64 used = num_valid_of(call.row(i)) * plane.token_numel();
  zero_out(plane, call.block_ids[i], used, plane.numel() - used);
}

}  // namespace

i64 fp8_scratch(const Plane& plane, i64 num_threads) {
  return num_threads * Scratch::nbytes(plane);
}

i64 fp8_row_nbytes(const Plane& plane, const Fp8& fp8) {
  return kPrefix + align16(plane.numel()) + align16(fp8.scales_nbytes(plane));
}

void fp8_compress(const Call& call, const Fp8& fp8) {
  parallel_for(call.num_threads, call.n, [&](i64 worker, i64 i) {
    encode_block(call, fp8, i, call.scratch + worker * Scratch::nbytes(call.plane));
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
    decode_block(call, fp8, i, call.scratch + worker * Scratch::nbytes(call.plane));
  });
  return -1;
}

}  // namespace kv
