// fp8: codes and fp32 scales; see formats/fp8.md. Rows are checked before the first block is
// written.
#include "call.h"

namespace kv {
namespace {

constexpr float kLargest[kNumTargets] = {448.0f, 57344.0f};
constexpr float kMinScale = 0x1p-100f;

enum Sharing : i64 { kTokenHead, kHead, kBlock };

i64 num_scales(const Plane& plane, i64 sharing) {
  if (sharing == kTokenHead) return plane.block_size * plane.num_heads;
  return sharing == kHead ? plane.num_heads : 1;
}

i64 scale_index(const Plane& plane, i64 sharing, i64 token, i64 head) {
  if (sharing == kTokenHead) return token * plane.num_heads + head;
  return sharing == kHead ? head : 0;
}

// Per worker: a head's elements side by side, and the largest magnitudes.
i64 head_scratch(const Plane& plane) { return align16(plane.head_dim * plane.itemsize); }

i64 worker_scratch(const Plane& plane) {
  return head_scratch(plane) + align16(4 * plane.num_heads);
}

// The elements of a token's head: where they are, or gathered into `buffer`.
const u8* elements(const Plane& plane, i64 id, i64 token, i64 head, u8* buffer) {
  if (plane.packed_heads()) return plane.at(id, token, head, 0);
  const i64 first = (token * plane.num_heads + head) * plane.head_dim;
  copy_in(plane, id, first, plane.head_dim, buffer);
  return buffer;
}

float scale_of(u32 amax_bits, i64 target) {
  if (amax_bits == 0) return 1.0f;
  float amax;
  std::memcpy(&amax, &amax_bits, sizeof(amax));
  const float scale = amax / kLargest[target];
  return scale > kMinScale ? scale : kMinScale;
}

void encode_block(const Call& call, const Fp8& fp8, i64 i, u8* scratch) {
  const Plane& plane = call.plane;
  const i64 id = call.block_ids[i], valid = call.valid(i), dim = plane.head_dim;
  const auto quantize = call.isa->quantize[fp8.source][fp8.target];
  const auto amax = call.isa->amax[fp8.source];
  const i64 count = fp8.given == nullptr ? num_scales(plane, fp8.sharing) : 0;
  u8* const row = call.row(i);
  u8* const codes = row + kPrefix;
  u8* const scales = codes + align16(plane.numel());
  u8* const buffer = scratch;

  write_prefix(row, 0, valid);
  std::memset(scales, 0, static_cast<std::size_t>(align16(4 * count)));
  if (count > 0 && fp8.sharing != kTokenHead) {
    u8* const most = scratch + head_scratch(plane);  // u32 [count]
    std::memset(most, 0, static_cast<std::size_t>(4 * count));
    for (i64 token = 0; token < valid; ++token) {
      for (i64 head = 0; head < plane.num_heads; ++head) {
        const u32 found = amax(elements(plane, id, token, head, buffer), dim);
        u8* const at = most + 4 * scale_index(plane, fp8.sharing, token, head);
        if (found > load<u32>(at)) store(at, found);
      }
    }
    for (i64 s = 0; s < count; ++s) {
      store(scales + 4 * s, scale_of(load<u32>(most + 4 * s), fp8.target));
    }
  }
  for (i64 token = 0; token < valid; ++token) {
    for (i64 head = 0; head < plane.num_heads; ++head) {
      const u8* const from = elements(plane, id, token, head, buffer);
      const i64 index = scale_index(plane, fp8.sharing, token, head);
      float scale;
      if (fp8.given != nullptr) {
        scale = fp8.given[index];
      } else if (fp8.sharing == kTokenHead) {
        scale = scale_of(amax(from, dim), fp8.target);
        store(scales + 4 * index, scale);
      } else {
        scale = load<float>(scales + 4 * index);
      }
      quantize(from, dim, scale, codes + (token * plane.num_heads + head) * dim);
    }
  }
  const i64 used = valid * plane.token_numel();
  std::memset(codes + used, 0, static_cast<std::size_t>(align16(plane.numel()) - used));
  call.set_row_size(i, scales + align16(4 * count) - row);
}

void decode_block(const Call& call, const Fp8& fp8, i64 i, u8* buffer) {
  const Plane& plane = call.plane;
  const auto dequantize = call.isa->dequantize[fp8.source][fp8.target];
  const i64 id = call.block_ids[i], dim = plane.head_dim, valid = num_valid_of(call.row(i));
  const u8* const codes = call.row(i) + kPrefix;
  const u8* const scales = codes + align16(plane.numel());
  for (i64 token = 0; token < valid; ++token) {
    for (i64 head = 0; head < plane.num_heads; ++head) {
      const i64 index = scale_index(plane, fp8.sharing, token, head);
      const i64 first = (token * plane.num_heads + head) * dim;
      const float scale = fp8.given != nullptr ? fp8.given[index] : load<float>(scales + 4 * index);
      if (plane.packed_heads()) {
        dequantize(codes + first, dim, scale, plane.at(id, token, head, 0));
      } else {
        dequantize(codes + first, dim, scale, buffer);
        copy_out(plane, id, first, dim, buffer);
      }
    }
  }
  const i64 used = valid * plane.token_numel();
  zero_out(plane, id, used, plane.numel() - used);
}

}  // namespace

i64 fp8_scratch(const Plane& plane, i64 num_threads) { return num_threads * worker_scratch(plane); }

i64 fp8_row_nbytes(const Plane& plane, const Fp8& fp8) {
  const i64 stored = fp8.given == nullptr ? num_scales(plane, fp8.sharing) : 0;
  return kPrefix + align16(plane.numel()) + align16(4 * stored);
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
