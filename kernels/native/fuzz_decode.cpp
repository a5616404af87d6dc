// Differential fuzzing of the native kernels, without Python: every instruction set must write the
// same rows, read them back, and agree on damaged rows, whose blocks must stay as they were. Rows
// and caches are exact allocations, so that a sanitizer sees any access outside them.
//
//   g++ -std=c++17 -O1 -g -ffp-contract=off -fsanitize=address,undefined -fno-sanitize-recover=all
//       -DKV_EMULATE_AVX512 -pthread $(ls kernels/native/*.cpp | grep -v module) -o /tmp/fuzz
//   /tmp/fuzz 20000 1
//
// Arguments: blocks to try, seed. The generator is fixed: the same arguments do the same.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "int4.h"
#include "split.h"
#include "stack.h"
#include "turboquant.h"

using namespace kv;

namespace {

struct Random {
  u64 state;
  u64 next() {
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return state * 0x2545F4914F6CDD1Du;
  }
  i64 below(i64 n) { return static_cast<i64>(next() >> 33) % n; }
  i64 between(i64 low, i64 high) { return low + below(high - low + 1); }
};

using Buffer = std::unique_ptr<u8[]>;

Buffer make_buffer(i64 nbytes, u8 fill) {
  Buffer buffer(new u8[static_cast<std::size_t>(nbytes)]);
  std::memset(buffer.get(), fill, static_cast<std::size_t>(nbytes));
  return buffer;
}

bool equal(const Buffer& a, const Buffer& b, i64 nbytes) {
  return std::memcmp(a.get(), b.get(), static_cast<std::size_t>(nbytes)) == 0;
}

constexpr i64 kItemsizes[kNumFormats] = {2, 2, 4, 1, 1};
constexpr int kExponentShiftOf[kNumFormats] = {7, 10, 23, 3, 2};

struct Tally {
  i64 rows = 0, damaged = 0, noticed = 0;
};

[[noreturn]] void fail(const char* what, i64 trial) {
  std::fprintf(stderr, "trial %lld: %s\n", static_cast<long long>(trial), what);
  std::exit(1);
}

// One to eight changed bytes, early ones more often; or another length. Returns the length.
i64 damage_bytes(Random& random, u8* row, i64 nbytes) {
  if (random.below(5) == 0) return random.below(2) == 0 ? random.below(nbytes + 1) : nbytes - 16;
  for (i64 changes = random.between(1, 8); changes > 0; --changes) {
    const i64 reach = random.below(2) == 0 ? 64 : nbytes;
    const i64 at = random.below(reach < nbytes ? reach : nbytes);
    row[at] = static_cast<u8>(random.below(2) == 0 ? row[at] ^ (1 << random.below(8))
                                                   : random.next());
  }
  return nbytes;
}

#include "fuzz_stack.inc"

// Tables that are as good as the frozen ones here: every instruction set gets the same.
struct AngleTables {
  float directions[2048], boundaries[2048];
  u32 signs[128];
  i32 logs[2 * 257];

  explicit AngleTables(i64 n) {
    for (i64 k = 0; k < 2 * n; ++k) {
      const double angle = 3.141592653589793 * static_cast<double>(k) / static_cast<double>(n);
      float* const at = (k % 2 == 0 ? directions : boundaries) + k / 2 * 2;
      at[0] = static_cast<float>(std::cos(angle)), at[1] = static_cast<float>(std::sin(angle));
    }
    for (int i = 0; i < 128; ++i) signs[i] = i % 3 == 0 ? 0x80000000u : 0;
    for (int j = 0; j < 257; ++j) {
      logs[j] = static_cast<i32>(65536 * std::log2(1 + j / 256.0));
      logs[257 + j] = static_cast<i32>(8388608 * (std::exp2(j / 256.0) - 1));
    }
  }
};

const AngleTables kTables48(48), kTables128(128);

TurboAngle make_turboangle(i64 source, i64 norm, bool half, bool digits, i64 dim) {
  const i64 pairs = dim / 2;
  const AngleTables& tables = digits ? kTables48 : kTables128;
  TurboAngle t{source, norm, half, {128, 7, 1, 1, (7 * pairs + 7) / 8}, {32, 5, 1, 1, 0},
               tables.directions, tables.boundaries, tables.signs, tables.logs,
               tables.logs + 257};
  if (digits) {  // 10 codes in 7 bytes; n codes below 48 take ceil(5.585 n / 8)
    const i64 rest = (5585 * (pairs % 10) + 7999) / 8000;
    t.angles = {48, 0, 10, 7, pairs / 10 * 7 + rest};
  }
  t.norms.nbytes = norm == kWholeNorms ? pairs * (half ? 2 : 4) : (5 * pairs + 7) / 8;
  return t;
}

// Tables of a plane: those of a block, or any, with frequencies of 1 next to large ones.
struct Profile {
  static constexpr i64 kClasses = 2;
  i64 channels;
  std::vector<u8> centre, kind, flip, sign_kind;
  std::vector<u16> exponents, mantissas, signs;
  Buffer memory;
  std::unique_ptr<Contexts> contexts;

  Profile(Random& random, Format format, i64 num_channels, const u8* block, i64 numel)
      : channels(num_channels),
        exponents(kClasses * kPrevious * kSymbols),
        mantissas(kClasses * kSymbols * kLeads),
        signs(kClasses * kHistories * kBuckets) {
    const i64 size = kItemsizes[format], few = random.below(3) == 0 ? 9 : 1000000;
    const u32 mask = (1u << kFormats[format].exponent_bits) - 1, leading = leading_bits(format);
    u32 counts[256] = {}, leads[256] = {};
    const auto word_at = [&](i64 i) {
      u32 word = 0;
      std::memcpy(&word, block + i * size, static_cast<std::size_t>(size));
      return word >> (kExponentShiftOf[format] - static_cast<int>(leading));
    };
    for (i64 c = 0; c < channels; ++c) {
      centre.push_back(static_cast<u8>(word_at(c) >> leading & mask));
      kind.push_back(random.below(few) == 0 ? 255 : static_cast<u8>(random.below(kClasses)));
      flip.push_back(static_cast<u8>(random.below(2)));
      sign_kind.push_back(static_cast<u8>(random.below(kClasses)));
    }
    for (i64 i = 0; i < numel; ++i) {
      const u32 word = word_at(i);
      const u8 middle = centre[static_cast<std::size_t>(i % channels)];
      const u32 symbol = (word >> leading & mask) - middle + 16;
      ++counts[symbol < kEscape ? symbol : kEscape];
      ++leads[word & ((1u << leading) - 1)];
    }
    const bool fits = random.below(3) > 0;
    for (i64 i = 0; i < kClasses * kPrevious; ++i) {
      fill(random, fits ? counts : nullptr, &exponents[i * kSymbols], kSymbols);
    }
    for (i64 i = 0; i < kClasses * kSymbols; ++i) {
      fill(random, fits ? leads : nullptr, &mantissas[i * kLeads], i64{1} << leading);
    }
    for (u16& freq : signs) {
      freq = static_cast<u16>(fits ? kTotal / 2 : random.between(1, kTotal - 1));
    }
    const ProfileTables tables{channels, kClasses, kClasses,
                               static_cast<u32>(kFormats[format].exponent_bits),
                               leading, centre.data(), kind.data(), flip.data(),
                               sign_kind.data(), exponents.data(), mantissas.data(), signs.data()};
    const i64 sizes[] = {channels, count_live(tables), kClasses, kClasses};
    memory = make_buffer(Contexts(nullptr, sizes).nbytes, 0xA5);
    contexts.reset(new Contexts(memory.get(), sizes));
    fill_contexts(tables, *contexts);
  }

  // Frequencies of 1 or more that sum to 4096, those of counts or any.
  static void fill(Random& random, const u32* counts, u16* freqs, i64 symbols) {
    i64 left = static_cast<i64>(kTotal) - symbols;
    if (counts != nullptr) {
      u32 raised[256] = {};
      u64 total = 0;
      for (i64 s = 0; s < symbols; ++s) total += raised[s] = 1 + 16 * counts[s];
      Model model;
      normalize(raised, total, model);
      std::memcpy(freqs, model.freqs, static_cast<std::size_t>(2 * symbols));
      return;
    }
    const i64 begin = random.below(symbols), part = random.between(1, 5);
    for (i64 s = 0; s < symbols; ++s) {
      const i64 more = s + 1 < symbols ? random.below(left / part + 1) : left;
      freqs[(begin + s) % symbols] = static_cast<u16>(1 + more);
      left -= more;
    }
  }

  // Zeros in the channels without elements.
  void clear(u8* block, i64 tokens, i64 size) const {
    for (i64 i = 0; i < tokens * channels; ++i) {
      if (kind[static_cast<std::size_t>(i % channels)] != 255) continue;
      std::memset(block + i * size, 0, static_cast<std::size_t>(size));
    }
  }
};

// A codec and what it was given.
struct Codec {
  int kind;  // raw, split, fp8, bitplane, microscaling, turboangle, int4, turboquant, stacked
  Format format;
  SplitModel model;
  Fp8 fp8;
  Bitplane bitplane;
  Microscaling ms;
  i64 norm;
  bool half, digits;
  Int4 int4;
  Turboquant turboquant;
  const Contexts* contexts;
  Layout* layout;

  Quantizer quantizer(const Plane& plane) const {
    return {[this](const Call& c) { microscaling_compress(c, ms); },
            [this](const Call& c) { return microscaling_decompress(c, ms); },
            layout->nbytes, microscaling_scratch(plane, 1)};
  }
  TurboAngle turboangle(const Plane& plane) const {
    return make_turboangle(format, norm, half, digits, plane.head_dim);
  }
  void compress(const Call& call) const {
    if (kind == 5) turboangle_compress(call, turboangle(call.plane));
    if (kind == 0) raw_compress(call);
    if (kind == 1) split_compress(call, format, model, contexts);
    if (kind == 2) fp8_compress(call, fp8);
    if (kind == 3) bitplane_compress(call, bitplane);
    if (kind == 4) microscaling_compress(call, ms);
    if (kind == 6) int4_compress(call, int4);
    if (kind == 7) turboquant_compress(call, turboquant);
    if (kind == 8) stack_compress(call, layout->stack(), quantizer(call.plane));
  }
  i64 decompress(const Call& call) const {
    if (kind == 5) return turboangle_decompress(call, turboangle(call.plane));
    if (kind == 0) return raw_decompress(call);
    if (kind == 3) return bitplane_decompress(call, bitplane);
    if (kind == 4) return microscaling_decompress(call, ms);
    if (kind == 6) return int4_decompress(call, int4);
    if (kind == 7) return turboquant_decompress(call, turboquant);
    if (kind == 8) {  // damage of the quantizer's row counts as damage too
      const i64 found = stack_decompress(call, layout->stack(), quantizer(call.plane));
      return found < -1 ? -2 - found : found;
    }
    return kind == 1 ? split_decompress(call, format, model, contexts) : fp8_decompress(call, fp8);
  }
  i64 scratch(const Plane& plane, i64 n) const {
    if (kind == 8) return stack_call_scratch(layout->stack(), quantizer(plane), 1);
    const i64 one = split_compress_scratch(plane, model, 1);
    const i64 all = split_decompress_scratch(plane, model, n);
    return (one > all ? one : all) + fp8_scratch(plane, 1) + bitplane_scratch(plane, 1) +
           microscaling_scratch(plane, 1) + turboangle_scratch(plane, 1) + int4_scratch(plane, 1) +
           turboquant_scratch(plane, 1);
  }
};

// Elements whose exponents follow one of several habits.
void fill_block(Random& random, Format format, u8* data, i64 numel, i64 channels) {
  const i64 size = kItemsizes[format], habit = random.below(7);
  const u32 center = static_cast<u32>(random.next()), step = 1u << kExponentShiftOf[format];
  for (i64 i = 0; i < numel; ++i) {
    u32 word = static_cast<u32>(random.next() >> 32);
    if (habit == 0) word = center;
    if (habit == 1 || habit == 2) {  // a bell over a few exponents; habit 2 with many zeros
      u32 spread = 0;
      for (u32 bits = word & 0x1FF; bits != 0; bits &= bits - 1) ++spread;
      word = center + spread * step + (word >> 9) % step;
      if (habit == 2 && random.below(3) > 0) word = 0;
    }
    if (habit == 6) {  // every channel at a level of its own
      const u32 level = static_cast<u32>(i % channels * 2654435761u >> 7) % 6;
      word = center + (level + (word >> 9 & word >> 11 & 1)) * step + word % step;
    }
    if (habit == 3) word = random.below(40) == 0 ? center : center + step;
    if (habit == 4) word = (word & 3) == 0 ? word : center ^ (word % step);
    std::memcpy(data + i * size, &word, static_cast<std::size_t>(size));
  }
}

// A plane whose axes lie in one of several orders, with gaps.
Plane make_plane(Random& random, i64 itemsize, i64& nbytes) {
  Plane p{};
  const i64 dims[] = {1, 3, 8, 16, 64, 100, 128};
  p.num_blocks = 3;
  p.block_size = random.between(1, 24);
  p.num_heads = random.between(1, 4);
  p.head_dim = dims[random.below(7)];
  if (random.below(4) == 0) p.block_size *= 8;
  p.itemsize = itemsize;
  const i64 gap = random.below(3), order = random.below(4);
  if (order == 0) {  // token, head, dim
    p.stride_element = 1, p.stride_head = p.head_dim + gap;
    p.stride_token = p.stride_head * p.num_heads, p.stride_block = p.stride_token * p.block_size;
  } else if (order == 1) {  // head, token, dim
    p.stride_element = 1, p.stride_token = p.head_dim;
    p.stride_head = p.stride_token * p.block_size + gap;
    p.stride_block = p.stride_head * p.num_heads;
  } else if (order == 2) {  // head, dim, token
    p.stride_token = 1, p.stride_element = p.block_size + gap;
    p.stride_head = p.stride_element * p.head_dim, p.stride_block = p.stride_head * p.num_heads;
  } else {  // whole blocks, side by side
    p.stride_element = 1, p.stride_head = p.head_dim, p.stride_token = p.token_numel();
    p.stride_block = p.numel();
  }
  nbytes = p.num_blocks * p.stride_block * itemsize;
  return p;
}

Codec make_codec(Random& random) {
  Codec codec{};
  codec.kind = random.below(3) == 0 ? static_cast<int>(random.below(9)) : 1;
  if (random.below(3) == 0) codec.kind = 3;
  const bool quantizes = codec.kind == 2 || codec.kind >= 4;
  const i64 formats = quantizes ? i64{kNumSources} : i64{kNumFormats};
  codec.format = static_cast<Format>(random.below(formats));
  codec.model = static_cast<SplitModel>(random.below(kNumModels));
  codec.fp8 = {codec.format, random.below(2), 1, 1, 1, true, random.below(2) == 0, nullptr};
  codec.bitplane = {codec.format, random.below(2) == 0};
  codec.ms = {codec.format, static_cast<Microscaling::Kind>(random.below(4)),
              random.below(2) == 0, nullptr};
  codec.norm = random.below(3), codec.half = random.below(2) == 0;
  codec.digits = random.below(2) == 0;
  const i64 group = i64{16} << random.below(3);
  codec.int4 = {codec.format, random.below(3), 2 + 2 * random.below(2), group,
                random.below(2) == 0};
  codec.turboquant = {codec.format, 1 + random.below(4), random.below(2) == 0};
  return codec;
}

// Scales of a token's head, a head, the block, a token, or a channel.
void share_scales(Random& random, const Plane& plane, Fp8& fp8) {
  const i64 kind = random.below(5);
  fp8.tokens = kind == 1 || kind == 2 || kind == 4 ? plane.block_size : 1;
  fp8.per_token = kind == 0 || kind == 3;
  fp8.heads = kind == 2 || kind == 3 ? plane.num_heads : 1;
  fp8.dims = kind == 4 ? 1 : plane.head_dim;
}

// Other frequencies of two symbols of a coded row: still a table, which reads more words or fewer.
void shift_frequencies(Random& random, u8* row) {
  const i64 size = load<u32>(row + 4) / 3;
  if (size < 2) return;
  u8* const one = row + kPrefix + 2 * random.below(size - 1);
  const i64 sum = load<u16>(one) + load<u16>(one + 2);
  const i64 freq = random.between(1, sum - 1);
  store(one, static_cast<u16>(freq));
  store(one + 2, static_cast<u16>(sum - freq));
}

// The hungriest stream: every slot is 0, whose symbol has frequency 1 and takes 12 bits. It wants
// more words than the row has bytes.
void starve(const Plane& plane, u8* row, i64 nbytes) {
  u8* at = row + kPrefix;
  if (row[0] < kProfile) {
    const i64 size = load<u32>(row + 4) / 3;
    if (size < 2) return;
    store(at + 2, static_cast<u16>(load<u16>(at) + load<u16>(at + 2) - 1));
    store(at, u16{1});
    at += align16(3 * size);
  }
  if (row[0] == 2) at += align16((plane.token_numel() + 3) / 4 + (plane.token_numel() + 7) / 8 + 1);
  std::memset(at, 0, static_cast<std::size_t>(row + nbytes - at));
  for (int lane = num_lanes(plane.numel() * plane.itemsize); lane > 0; --lane, at += 4) {
    store(at, kLower);
  }
}

// Changed bytes, or another length; or other frequencies.
i64 damage_row(Random& random, const Codec& codec, const Plane& plane, u8* row, i64 nbytes) {
  const i64 kind = random.below(6);
  if (codec.kind == 1 && row[0] >= 1 && kind < 2) {
    if (kind == 0 && row[0] < kProfile) shift_frequencies(random, row);
    if (kind == 1) starve(plane, row, nbytes);
    return nbytes;
  }
  if (codec.kind == 8) return damage_coded(random, *codec.layout, row, nbytes);
  return damage_bytes(random, row, nbytes);
}

void try_block(Random& random, i64 trial, Tally& tally) {
  Codec codec = make_codec(random);
  const i64 size = kItemsizes[codec.format];
  i64 cache_nbytes = 0;
  Plane plane = make_plane(random, size, cache_nbytes);
  share_scales(random, plane, codec.fp8);
  const bool scaled = codec.kind == 4 || codec.kind == 8;
  if (scaled && plane.head_dim % codec.ms.group() != 0) codec.kind = 0;
  if (codec.kind == 5 && plane.head_dim % 2 != 0) codec.kind = 0;
  if (codec.kind >= 6 && plane.head_dim % 8 != 0) codec.kind = 0;  // a head that fills no bytes
  const Buffer cache = make_buffer(cache_nbytes, 0x5A);
  const Buffer block = make_buffer(plane.numel() * size, 0);
  fill_block(random, codec.format, block.get(), plane.numel(), plane.token_numel());
  const Profile profile(random, codec.format, plane.token_numel(), block.get(), plane.numel());
  if (random.below(2) == 0) profile.clear(block.get(), plane.block_size, size);
  codec.contexts = profile.contexts.get();
  Layout layout = make_layout(random, plane, codec.ms);
  codec.layout = &layout;
  plane.data = cache.get();
  const i64 id = random.below(plane.num_blocks);
  copy_out(plane, id, 0, plane.numel(), block.get());

  const i64 room = 64 + 2 * align16(plane.numel() * (size + 4));
  const i64 scratch_nbytes = codec.scratch(plane, 1);
  const Buffer scratch = make_buffer(scratch_nbytes, 0xA5);
  const i32 valid = static_cast<i32>(random.between(0, plane.block_size));
  const Buffer first = make_buffer(room, 0xA5);
  i32 nbytes = 0, first_nbytes = 0;
  Call call{nullptr, 1, plane, &id, 1, &valid, nullptr, 0, room, &nbytes, 1, scratch.get(),
            scratch_nbytes};
  for (int isa = 0; isa < kNumIsas; ++isa) {
    call.isa = isa_at(isa);
    if (call.isa == nullptr) continue;
    const Buffer row = make_buffer(room, 0xA5);
    call.rows = row.get();
    codec.compress(call);
    if (isa == 0) {
      first_nbytes = nbytes;
      std::memcpy(first.get(), row.get(), static_cast<std::size_t>(room));
    }
    if (nbytes != first_nbytes || !equal(row, first, room)) {
      fail("rows differ between instruction sets", trial);
    }
  }

  call.num_valid = nullptr;
  for (int attempt = 0; attempt < 12; ++attempt) {
    const Buffer copy = make_buffer(first_nbytes, 0);
    std::memcpy(copy.get(), first.get(), static_cast<std::size_t>(first_nbytes));
    i64 length = first_nbytes;
    if (attempt > 0) length = damage_row(random, codec, plane, copy.get(), first_nbytes);
    nbytes = static_cast<i32>(length);
    const Buffer exact = make_buffer(length > 0 ? length : 1, 0);
    if (length > 0) std::memcpy(exact.get(), copy.get(), static_cast<std::size_t>(length));
    call.rows = exact.get();
    call.row_nbytes = length;
    const Buffer expected = make_buffer(cache_nbytes, 0x5A);
    i64 verdict = 0;
    for (int isa = 0; isa < kNumIsas; ++isa) {
      call.isa = isa_at(isa);
      if (call.isa == nullptr) continue;
      const Buffer target = make_buffer(cache_nbytes, 0x5A);
      call.plane.data = target.get();
      const i64 result = codec.decompress(call);
      if (isa == 0) {
        verdict = result;
        if (result >= 0 && !equal(target, expected, cache_nbytes)) {
          fail("a damaged row changed the cache", trial);
        }
        std::memcpy(expected.get(), target.get(), static_cast<std::size_t>(cache_nbytes));
      }
      if (result != verdict || !equal(target, expected, cache_nbytes)) {
        fail("instruction sets disagree on a row", trial);
      }
    }
    ++tally.rows;
    if (attempt > 0) {
      ++tally.damaged;
      tally.noticed += verdict >= 0;
      continue;
    }
    if (verdict >= 0) fail("a sound row was refused", trial);
    const i64 used = valid * plane.token_numel() * size;
    const Buffer back = make_buffer(plane.numel() * size, 0);
    call.plane.data = expected.get();
    copy_in(call.plane, id, 0, plane.numel(), back.get());
    std::memset(block.get() + used, 0, static_cast<std::size_t>(plane.numel() * size - used));
    if (codec.kind < 2 && !equal(back, block, plane.numel() * size)) {
      fail("a block did not come back", trial);
    }
    // everything but the block is as it was
    const Buffer untouched = make_buffer(plane.numel() * size, 0x5A);
    copy_out(call.plane, id, 0, plane.numel(), untouched.get());
    for (i64 i = 0; i < cache_nbytes; ++i) {
      if (expected[static_cast<std::size_t>(i)] != 0x5A) fail("a neighbour was written", trial);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  const i64 trials = argc > 1 ? std::atoll(argv[1]) : 1000;
  Random random{argc > 2 ? static_cast<u64>(std::atoll(argv[2])) | 1 : 1};
  Tally tally;
  for (i64 trial = 0; trial < trials; ++trial) {
    try_block(random, trial, tally);
    if (trial % 4 == 0) try_plain_row(random, trial, tally);
  }
  int isas = 0;
  for (int isa = 0; isa < kNumIsas; ++isa) isas += isa_at(isa) != nullptr;
  std::printf("%lld blocks, %d instruction sets, %lld rows decoded, %lld of %lld damaged refused\n",
              static_cast<long long>(trials), isas, static_cast<long long>(tally.rows),
              static_cast<long long>(tally.noticed), static_cast<long long>(tally.damaged));
  return 0;
}
