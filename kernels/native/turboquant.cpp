// turboquant: codes of rotated vectors and their norms; see formats/turboquant.md. Rows are checked
// before the first block is written.
#include "turboquant.h"

#include <type_traits>

namespace kv {
namespace {

#include "fields.inc"
#include "scales.inc"

// fp32 patterns of formats/turboquant.md, by bits - 1.
constexpr u32 kLevels[4][8] = {
    {0x3F4C422A},
    {0x3EE7D2C9, 0x3FC1555D},
    {0x3E7AF9F8, 0x3F418990, 0x3FAC0538, 0x4009B97A},
    {0x3E0379FD, 0x3EC6AE44, 0x3F28215E, 0x3F713D39, 0x3FA0CC2F, 0x3FCF1C25, 0x40046AC7,
     0x402EE2BF}};
constexpr u32 kThresholds[4][7] = {
    {},
    {0x3F7B4A0F},
    {0x3F002407, 0x3F866500, 0x3FDFBC16},
    {0x3E8435A1, 0x3F05BC40, 0x3F4CAF4C, 0x3F8CB566, 0x3FB7F42A, 0x3FEBF8DA, 0x4019A6C3}};

// The diagonal of formats/rotation.md as sign bits; room for a kernel's last piece.
struct Diagonal {
  u32 at[kMaxRotated + 64];
};

constexpr Diagonal make_diagonal() {
  Diagonal signs{};
  for (u64 i = 0; i < static_cast<u64>(kMaxRotated); ++i) {
    u64 z = (i + 1) * 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    signs.at[i] = static_cast<u32>((z ^ z >> 31) >> 63) << 31;
  }
  return signs;
}

constexpr Diagonal kSigns = make_diagonal();

i64 work_floats(const Plane& plane) { return plane.head_dim + plane.head_dim / 8 + 64; }

i64 worker_scratch(const Plane& plane) {
  return align16(plane.head_dim * plane.itemsize) + align16(4 * work_floats(plane));
}

// Where the parts of a row lie, and how long a head's share of each is.
struct Parts {
  i64 step0, step1, norm_size;
  i64 plane0 = kPrefix, plane1, norms, end;

  Parts(const Plane& plane, const Turboquant& codec)
      : step0(plane.head_dim * (codec.bits == 3 ? 2 : codec.bits) / 8),
        step1(codec.bits == 3 ? plane.head_dim / 8 : 0), norm_size(codec.wide_norm ? 4 : 2) {
    const i64 vectors = plane.block_size * plane.num_heads;
    plane1 = plane0 + align16(vectors * step0);
    norms = plane1 + align16(vectors * step1);
    end = norms + align16(vectors * norm_size);
  }
};

void store_norm(u8* at, float norm, bool wide) {
  const i32 bits = as_bits(norm);
  if (wide) store(at, static_cast<u32>(narrow<Fp32>(bits)));
  if (!wide) store(at, static_cast<u16>(narrow<Fp16>(bits)));
}

float load_norm(const u8* at, bool wide) {
  const u32 word = wide ? load<u32>(at) : load<u16>(at);
  const i32 magnitude = static_cast<i32>(wide ? word & 0x7FFFFFFFu : word & 0x7FFFu);
  if (magnitude >= (wide ? Codes<Fp32>::inf : Codes<Fp16>::inf)) return 0.0f;
  const i32 bits = wide ? magnitude : widen<Fp16>(magnitude);
  const u32 sign = wide ? word >> 31 : word >> 15;
  return as_float(static_cast<i32>(static_cast<u32>(bits) | sign << 31));
}

void encode_block(const Call& call, const Turboquant& codec, i64 i, u8* scratch) {
  const Plane& plane = call.plane;
  const i64 id = call.block_ids[i], valid = call.valid(i), dim = plane.head_dim;
  const Parts parts(plane, codec);
  u8* const row = call.row(i);
  float* const work = reinterpret_cast<float*>(scratch + align16(dim * plane.itemsize));
  float edges[7];
  std::memcpy(edges, kThresholds[codec.bits - 1], sizeof(edges));

  write_prefix(call.row(i), 0, valid);
  std::memset(row + parts.plane0, 0, static_cast<std::size_t>(parts.end - parts.plane0));
  for (i64 vector = 0; vector < valid * plane.num_heads; ++vector) {
    const i64 token = vector / plane.num_heads, head = vector % plane.num_heads;
    const u8* from = plane.at(id, token, head, 0);
    if (!plane.packed_heads()) {
      copy_in(plane, id, vector * dim, dim, scratch);
      from = scratch;
    }
    const float norm = call.isa->turboquant.encode[codec.source](
        from, dim, codec.bits, kSigns.at, edges, work, row + parts.plane0 + vector * parts.step0,
        row + parts.plane1 + vector * parts.step1);
    store_norm(row + parts.norms + vector * parts.norm_size, norm, codec.wide_norm);
  }
  call.set_row_size(i, parts.end);
}

void decode_block(const Call& call, const Turboquant& codec, i64 i, u8* scratch) {
  const Plane& plane = call.plane;
  const i64 id = call.block_ids[i], valid = num_valid_of(call.row(i)), dim = plane.head_dim;
  const Parts parts(plane, codec);
  u8* const row = call.row(i);
  float* const work = reinterpret_cast<float*>(scratch + align16(dim * plane.itemsize));
  const i64 half = i64{1} << (codec.bits - 1);
  float levels[16];
  for (i64 k = 0; k < half; ++k) {
    levels[k] = as_float(static_cast<i32>(kLevels[codec.bits - 1][k]));
    levels[half + k] = -levels[k];
  }
  for (i64 vector = 0; vector < valid * plane.num_heads; ++vector) {
    const i64 token = vector / plane.num_heads, head = vector % plane.num_heads;
    u8* const to = plane.packed_heads() ? plane.at(id, token, head, 0) : scratch;
    const float norm = load_norm(row + parts.norms + vector * parts.norm_size, codec.wide_norm);
    call.isa->turboquant.decode[codec.source](row + parts.plane0 + vector * parts.step0,
                                              row + parts.plane1 + vector * parts.step1, dim,
                                              codec.bits, kSigns.at, levels, norm, work, to);
    if (to == scratch) copy_out(plane, id, vector * dim, dim, scratch);
  }
  const i64 used = valid * plane.token_numel();
  zero_out(plane, id, used, plane.numel() - used);
}

}  // namespace

i64 turboquant_scratch(const Plane& plane, i64 num_threads) {
  return num_threads * worker_scratch(plane);
}

i64 turboquant_row_nbytes(const Plane& plane, const Turboquant& codec) {
  return Parts(plane, codec).end;
}

void turboquant_compress(const Call& call, const Turboquant& codec) {
  parallel_for(call.num_threads, call.n, [&](i64 worker, i64 i) {
    encode_block(call, codec, i, call.scratch + worker * worker_scratch(call.plane));
  });
}

i64 turboquant_decompress(const Call& call, const Turboquant& codec) {
  const i64 expected = turboquant_row_nbytes(call.plane, codec);
  for (i64 i = 0; i < call.n; ++i) {
    Fault fault = check_prefix(call, i);
    if (fault == kSound && call.row(i)[0] != 0) fault = kMode;
    if (fault == kSound && call.row_size(i) != expected) fault = kTiling;
    if (fault != kSound) return i << 8 | fault;
  }
  parallel_for(call.num_threads, call.n, [&](i64 worker, i64 i) {
    decode_block(call, codec, i, call.scratch + worker * worker_scratch(call.plane));
  });
  return -1;
}

}  // namespace kv
