// raw: the elements' bytes. Rows are checked before the first block is written.
#include "call.h"

namespace kv {

void raw_compress(const Call& call) {
  const Plane& plane = call.plane;
  const i64 size = plane.itemsize, part = plane.numel() * size;
  parallel_for(call.num_threads, call.n, [&](i64, i64 i) {
    u8* const row = call.row(i);
    const i64 count = call.valid(i) * plane.token_numel();
    write_prefix(row, 0, call.valid(i));
    copy_in(plane, call.block_ids[i], 0, count, row + kPrefix);
    std::memset(row + kPrefix + count * size, 0,
                static_cast<std::size_t>(align16(part) - count * size));
    call.set_row_size(i, kPrefix + align16(part));
  });
}

i64 raw_decompress(const Call& call) {
  const Plane& plane = call.plane;
  const i64 expected = kPrefix + align16(plane.numel() * plane.itemsize);
  for (i64 i = 0; i < call.n; ++i) {
    Fault fault = check_prefix(call, i);
    if (fault == kSound && call.row(i)[0] != 0) fault = kMode;
    if (fault == kSound && call.row_size(i) != expected) fault = kTiling;
    if (fault != kSound) return i << 8 | fault;
  }
  parallel_for(call.num_threads, call.n, [&](i64, i64 i) {
    const i64 count = num_valid_of(call.row(i)) * plane.token_numel();
    copy_out(plane, call.block_ids[i], 0, count, call.row(i) + kPrefix);
    zero_out(plane, call.block_ids[i], count, plane.numel() - count);
  });
  return -1;
}

}  // namespace kv
