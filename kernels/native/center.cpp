// center=profile: blocks of a cache less their means to dense memory, and back. The dense blocks
// stand where a codec has its rows.
#include "call.h"

namespace kv {

void center_take_off(const Call& call, const Center& center) {
  const Plane& plane = call.plane;
  const i64 token = plane.token_numel();
  parallel_for(call.num_threads, call.n, [&](i64, i64 i) {
    u8* const block = call.row(i);
    copy_in(plane, call.block_ids[i], 0, plane.numel(), block);
    for (i64 t = 0; t < plane.block_size; ++t) {
      call.isa->shift[center.source](block + t * token * plane.itemsize, token, center.mean,
                                     0x80000000u);
    }
  });
}

void center_put_back(const Call& call, const Center& center) {
  const Plane& plane = call.plane;
  const i64 token = plane.token_numel();
  parallel_for(call.num_threads, call.n, [&](i64, i64 i) {
    u8* const block = call.row(i);
    const i64 valid = call.valid(i), count = valid * token;
    for (i64 t = 0; t < valid; ++t) {
      call.isa->shift[center.source](block + t * token * plane.itemsize, token, center.mean, 0);
    }
    copy_out(plane, call.block_ids[i], 0, count, block);
    zero_out(plane, call.block_ids[i], count, plane.numel() - count);
  });
}

}  // namespace kv
