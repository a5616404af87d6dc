// turboangle: rows of angle codes, norms and their ranges; see formats/turboangle.md.
#include "call.h"

namespace kv {
namespace {

i64 vectors(const Plane& plane) { return plane.block_size * plane.num_heads; }

i64 ends_nbytes(const TurboAngle& t) {
  return t.norm == kWholeNorms ? 0 : t.half ? 4 : 8;
}

// A row's parts: angles at 0, norms, ranges, and the end, each at a multiple of 16.
struct Parts {
  i64 norms, ends, end;
};

Parts parts(const Plane& plane, const TurboAngle& t) {
  const i64 n = vectors(plane);
  const i64 norms = kPrefix + align16(n * t.angles.nbytes);
  const i64 ends = norms + align16(n * t.norms.nbytes);
  return {norms, ends, ends + align16(n * ends_nbytes(t))};
}

// Per worker: a vector's elements side by side, then 4.5 floats an element and packed codes.
i64 element_scratch(const Plane& plane) { return align16(plane.head_dim * plane.itemsize); }

i64 worker_scratch(const Plane& plane) {
  return element_scratch(plane) + align16(20 * plane.head_dim + 32);
}

// Zeros from `at` to `end`.
void clear(u8* at, u8* end) { std::memset(at, 0, static_cast<std::size_t>(end - at)); }

void encode_block(const Call& call, const TurboAngle& t, i64 i, u8* scratch) {
  const Plane& plane = call.plane;
  const auto encode = call.isa->turbo_encode[t.source];
  const i64 id = call.block_ids[i], dim = plane.head_dim;
  const i64 used = call.valid(i) * plane.num_heads, ends_size = ends_nbytes(t);
  const Parts p = parts(plane, t);
  u8* const row = call.row(i);
  u8* const work = scratch + element_scratch(plane);
  write_prefix(row, 0, call.valid(i));
  for (i64 v = 0; v < used; ++v) {
    const u8* from = plane.at(id, v / plane.num_heads, v % plane.num_heads, 0);
    if (!plane.packed_heads()) {
      copy_in(plane, id, v * dim, dim, scratch);
      from = scratch;
    }
    encode(t, from, dim, work, row + kPrefix + v * t.angles.nbytes,
           row + p.norms + v * t.norms.nbytes, row + p.ends + v * ends_size);
  }
  clear(row + kPrefix + used * t.angles.nbytes, row + p.norms);
  clear(row + p.norms + used * t.norms.nbytes, row + p.ends);
  clear(row + p.ends + used * ends_size, row + p.end);
  call.set_row_size(i, p.end);
}

void decode_block(const Call& call, const TurboAngle& t, i64 i, u8* scratch) {
  const Plane& plane = call.plane;
  const auto decode = call.isa->turbo_decode[t.source];
  const i64 id = call.block_ids[i], dim = plane.head_dim;
  const u8* const row = call.row(i);
  const i64 used = num_valid_of(row) * plane.num_heads, ends_size = ends_nbytes(t);
  const Parts p = parts(plane, t);
  u8* const work = scratch + element_scratch(plane);
  for (i64 v = 0; v < used; ++v) {
    u8* const at = plane.at(id, v / plane.num_heads, v % plane.num_heads, 0);
    decode(t, row + kPrefix + v * t.angles.nbytes, row + p.norms + v * t.norms.nbytes,
           row + p.ends + v * ends_size, dim, work, plane.packed_heads() ? at : scratch);
    if (!plane.packed_heads()) copy_out(plane, id, v * dim, dim, scratch);
  }
  zero_out(plane, id, used * dim, plane.numel() - used * dim);
}

}  // namespace

i64 turboangle_scratch(const Plane& plane, i64 num_threads) {
  return num_threads * worker_scratch(plane);
}

i64 turboangle_row_nbytes(const Plane& plane, const TurboAngle& t) { return parts(plane, t).end; }

void turboangle_compress(const Call& call, const TurboAngle& t) {
  parallel_for(call.num_threads, call.n, [&](i64 worker, i64 i) {
    encode_block(call, t, i, call.scratch + worker * worker_scratch(call.plane));
  });
}

i64 turboangle_decompress(const Call& call, const TurboAngle& t) {
  const i64 expected = turboangle_row_nbytes(call.plane, t);
  for (i64 i = 0; i < call.n; ++i) {
    Fault fault = check_prefix(call, i);
    if (fault == kSound && call.row(i)[0] != 0) fault = kMode;
    if (fault == kSound && call.row_size(i) != expected) fault = kTiling;
    if (fault != kSound) return i << 8 | fault;
  }
  parallel_for(call.num_threads, call.n, [&](i64 worker, i64 i) {
    decode_block(call, t, i, call.scratch + worker * worker_scratch(call.plane));
  });
  return -1;
}

}  // namespace kv
