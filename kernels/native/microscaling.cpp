// nvfp4, mxfp4 and mxfp8: codes, and a byte of scale for 16 or 32 elements; see formats/nvfp4.md,
// formats/mxfp4.md and formats/mxfp8.md. Rows are checked before the first block is written.
#include "call.h"

namespace kv {
namespace {

constexpr float kMinGlobal = 0x1p-100f, kMaxGlobal = 0x1p117f;

// Where the parts of a row begin, and where it ends.
struct Layout {
  i64 groups, scales, global, end;
};

Layout layout_of(const Plane& plane, const Microscaling& ms) {
  Layout layout{};
  layout.groups = plane.numel() / ms.group();
  layout.scales = kPrefix + align16(plane.numel() / ms.elements_per_byte());
  layout.global = layout.scales + align16(layout.groups);
  layout.end = layout.global + (ms.measures() ? 16 : 0);
  return layout;
}

constexpr i64 kRun = 512;  // elements that are worth a call; shorter runs are gathered first

// Elements that are gathered at a time: whole heads.
i64 gathered(const Plane& plane) {
  return plane.head_dim < kRun ? kRun / plane.head_dim * plane.head_dim : plane.head_dim;
}

i64 worker_scratch(const Plane& plane) { return align16(gathered(plane) * plane.itemsize); }

bool in_place(const Plane& plane) {
  return plane.packed_heads() && (plane.run() >= kRun || plane.run() == plane.numel());
}

// move(elements, offset, length) for the first `count` elements of a block in pieces that lie side
// by side, or are gathered.
template <class Move>
void for_each_input(const Plane& plane, i64 id, i64 count, u8* buffer, const Move& move) {
  if (in_place(plane)) return for_each_run(plane, id, 0, count, move);
  const i64 step = gathered(plane);
  for (i64 first = 0; first < count; first += step) {
    const i64 length = count - first < step ? count - first : step;
    copy_in(plane, id, first, length, buffer);
    move(buffer, first, length);
  }
}

template <class Move>
void for_each_output(const Plane& plane, i64 id, i64 count, u8* buffer, const Move& move) {
  if (in_place(plane)) return for_each_run(plane, id, 0, count, move);
  const i64 step = gathered(plane);
  for (i64 first = 0; first < count; first += step) {
    const i64 length = count - first < step ? count - first : step;
    move(buffer, first, length);
    copy_out(plane, id, first, length, buffer);
  }
}

float measure(const Call& call, const Microscaling& ms, i64 id, i64 count, u8* buffer) {
  u32 most = 0;
  for_each_input(call.plane, id, count, buffer, [&](const u8* from, i64, i64 length) {
    const u32 found = call.isa->amax[ms.source](from, length);
    most = found > most ? found : most;
  });
  if (most == 0) return 1.0f;
  float amax;
  std::memcpy(&amax, &most, sizeof(amax));
  const float scale = amax / 2688.0f;
  return scale > kMinGlobal ? scale : kMinGlobal;
}

void encode_block(const Call& call, const Microscaling& ms, i64 i, u8* buffer) {
  const Plane& plane = call.plane;
  const Layout layout = layout_of(plane, ms);
  const i64 id = call.block_ids[i], valid = call.valid(i), used = valid * plane.token_numel();
  u8* const row = call.row(i);
  u8* const codes = row + kPrefix;
  u8* const scales = row + layout.scales;
  const i64 codes_used = used / ms.elements_per_byte(), groups_used = used / ms.group();

  write_prefix(row, 0, valid);
  std::memset(codes + codes_used, 0, static_cast<std::size_t>(layout.scales - kPrefix - codes_used));
  std::memset(scales + groups_used, 0,
              static_cast<std::size_t>(layout.end - layout.scales - groups_used));
  float global = 1.0f;
  if (ms.measures()) {
    global = measure(call, ms, id, used, buffer);
    store(row + layout.global, global);
  } else if (ms.given != nullptr) {
    global = *ms.given;
  }
  for_each_input(plane, id, used, buffer, [&](const u8* from, i64 offset, i64 length) {
    u8* const to = codes + offset / ms.elements_per_byte();
    u8* const at = scales + offset / ms.group();
    const i64 groups = length / ms.group();
    if (ms.kind == Microscaling::kNvfp4) {
      call.isa->nvfp4_quantize[ms.source](from, groups, global, ms.four_over_six, at, to);
    } else {
      call.isa->mx_quantize[ms.source][ms.kind - 1](from, groups, at, to);
    }
  });
  call.set_row_size(i, layout.end);
}

void decode_block(const Call& call, const Microscaling& ms, i64 i, u8* buffer) {
  const Plane& plane = call.plane;
  const Layout layout = layout_of(plane, ms);
  const u8* const row = call.row(i);
  const i64 id = call.block_ids[i], used = num_valid_of(row) * plane.token_numel();
  const float global = ms.given != nullptr ? *ms.given
                       : ms.measures()     ? load<float>(row + layout.global)
                                           : 1.0f;
  for_each_output(plane, id, used, buffer, [&](u8* to, i64 offset, i64 length) {
    const u8* const from = row + kPrefix + offset / ms.elements_per_byte();
    const u8* const scales = row + layout.scales + offset / ms.group();
    const i64 groups = length / ms.group();
    if (ms.kind == Microscaling::kNvfp4) {
      call.isa->nvfp4_dequantize[ms.source](from, scales, groups, global, to);
    } else {
      call.isa->mx_dequantize[ms.source][ms.kind - 1](from, scales, groups, to);
    }
  });
  zero_out(plane, id, used, plane.numel() - used);
}

Fault check_row(const Call& call, const Microscaling& ms, i64 i) {
  const Layout layout = layout_of(call.plane, ms);
  const Fault fault = check_prefix(call, i);
  if (fault != kSound) return fault;
  const u8* const row = call.row(i);
  if (row[0] != 0) return kMode;
  if (call.row_size(i) != layout.end) return kTiling;
  const i64 used = num_valid_of(row) * call.plane.token_numel() / ms.group();
  const u8 top = ms.kind == Microscaling::kNvfp4 ? 0x7E : 0xFE;
  if (used > 0 && call.isa->largest(row + layout.scales, used) > top) return kScale;
  if (ms.measures()) {
    const float global = load<float>(row + layout.global);
    if (!(global >= kMinGlobal && global <= kMaxGlobal)) return kScale;
  }
  return kSound;
}

}  // namespace

i64 microscaling_scratch(const Plane& plane, i64 num_threads) {
  return num_threads * worker_scratch(plane);
}

i64 microscaling_row_nbytes(const Plane& plane, const Microscaling& ms) {
  return layout_of(plane, ms).end;
}

void microscaling_compress(const Call& call, const Microscaling& ms) {
  parallel_for(call.num_threads, call.n, [&](i64 worker, i64 i) {
    encode_block(call, ms, i, call.scratch + worker * worker_scratch(call.plane));
  });
}

i64 microscaling_decompress(const Call& call, const Microscaling& ms) {
  for (i64 i = 0; i < call.n; ++i) {
    const Fault fault = check_row(call, ms, i);
    if (fault != kSound) return i << 8 | fault;
  }
  parallel_for(call.num_threads, call.n, [&](i64 worker, i64 i) {
    decode_block(call, ms, i, call.scratch + worker * worker_scratch(call.plane));
  });
  return -1;
}

}  // namespace kv
