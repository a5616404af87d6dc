// One paged call: what Python hands over, how its rows are shared out, and how damage is reported.
#pragma once

#include <atomic>
#include <exception>
#include <thread>
#include <vector>

#include "common.h"
#include "isa.h"
#include "plane.h"

namespace kv {

constexpr i64 kPrefix = 16;  // bytes before a row's first part, for every codec here

struct Call {
  const Isa* isa;
  i64 num_threads;
  Plane plane;
  const i64* block_ids;  // [n]
  i64 n;
  const i32* num_valid;  // [n], or null: every block is full
  u8* rows;              // [n, row_nbytes], rows row_stride bytes apart
  i64 row_stride, row_nbytes;
  i32* nbytes;  // [n], nbytes_stride integers apart
  i64 nbytes_stride;
  u8* scratch;
  i64 scratch_nbytes;

  u8* row(i64 i) const { return rows + i * row_stride; }
  i64 valid(i64 i) const { return num_valid == nullptr ? plane.block_size : num_valid[i]; }
  i64 row_size(i64 i) const { return nbytes[i * nbytes_stride]; }
  void set_row_size(i64 i, i64 size) const { nbytes[i * nbytes_stride] = static_cast<i32>(size); }
};

// The damaged row of lowest index, as row << 8 | fault; -1 when all are sound. Rows are taken in
// ascending order, so whoever fails first, every row below it is looked at too.
class Damage {
 public:
  void report(i64 row, Fault fault) {
    const i64 value = row << 8 | fault;
    i64 known = lowest_.load();
    while (value < known && !lowest_.compare_exchange_weak(known, value)) {
    }
  }
  bool below(i64 row) const { return lowest_.load() < row << 8; }
  i64 result() const { return lowest_.load() == kNone ? -1 : lowest_.load(); }

 private:
  static constexpr i64 kNone = INT64_MAX;
  std::atomic<i64> lowest_{kNone};
};

// task(worker, i) for every i below n. Fewer threads than asked for do the same work.
template <class Task>
void parallel_for(i64 num_threads, i64 n, const Task& task) {
  std::atomic<i64> next{0};
  const auto work = [&](i64 worker) {
    for (i64 i = next.fetch_add(1); i < n; i = next.fetch_add(1)) task(worker, i);
  };
  std::vector<std::thread> threads;
  try {
    for (i64 worker = 1; worker < num_threads && worker < n; ++worker) {
      threads.emplace_back(work, worker);
    }
  } catch (const std::exception&) {
    // no more threads to be had: the ones there are take all rows
  }
  work(0);
  for (std::thread& thread : threads) thread.join();
}

inline void write_prefix(u8* row, u8 mode, i64 num_valid) {
  std::memset(row, 0, kPrefix);
  row[0] = mode;
  store(row + 2, static_cast<u16>(num_valid));
}

inline i64 num_valid_of(const u8* row) { return load<u16>(row + 2); }

// Checks what every row has; the codec checks mode and parts.
inline Fault check_prefix(const Call& call, i64 i) {
  const u8* row = call.row(i);
  if (call.row_size(i) < kPrefix || call.row_size(i) > call.row_nbytes) return kSlot;
  if (row[1] != 0) return kReserved;
  return num_valid_of(row) > call.plane.block_size ? kNumValid : kSound;
}

// Copies a part and zeros its padding; returns where the next part begins.
inline u8* put_part(u8* at, const u8* data, i64 nbytes) {
  std::memcpy(at, data, static_cast<std::size_t>(nbytes));
  std::memset(at + nbytes, 0, static_cast<std::size_t>(align16(nbytes) - nbytes));
  return at + align16(nbytes);
}

// What predicts exponents in the split codec; the order is that of MODELS in split_native.py.
enum SplitModel : i64 { kPlainModel, kCentredModel, kProfileModel, kContextModel, kNumModels };

// Whether a model codes with tables of a profile.
inline bool is_tabled(SplitModel model) { return model >= kProfileModel; }

// Scales of the fp8 codec.
struct Fp8 {
  i64 source, target;       // indices into Isa
  i64 tokens, heads, dims;  // that share a scale
  bool per_token;           // scales of unused tokens are zero
  bool power;               // scales are stored as UE8M0 bytes, not as fp32
  const float* given;       // or null: measured, and stored in the row

  // Number of scales of a block, and the first one of a token's head.
  i64 num_scales(const Plane& p) const {
    return p.block_size / tokens * (p.num_heads / heads) * (p.head_dim / dims);
  }
  i64 first(const Plane& p, i64 token, i64 head) const {
    const i64 of_token = per_token ? token : 0, of_head = heads == 1 ? head : 0;
    return (of_token * (heads == 1 ? p.num_heads : 1) + of_head) * (p.head_dim / dims);
  }
  i64 scales_nbytes(const Plane& p) const {
    return given != nullptr ? 0 : num_scales(p) * (power ? 1 : 4);
  }
};

// Groups under scales: nvfp4, mxfp4 and mxfp8.
struct Microscaling {
  enum Kind : i64 { kNvfp4, kMxfp4, kMxfp8E4m3, kMxfp8E5m2, kNumKinds };
  i64 source;  // index into Isa
  Kind kind;
  bool four_over_six;
  const float* given;  // nvfp4: the global scale, or null: measured, and stored in the row

  i64 group() const { return kind == kNvfp4 ? 16 : 32; }
  i64 elements_per_byte() const { return kind <= kMxfp4 ? 2 : 1; }
  bool measures() const { return kind == kNvfp4 && given == nullptr; }
};

// Rate of the bitplane codec.
struct Bitplane {
  Format format;
  bool two_level;

  i64 quantile() const { return two_level ? 8 : 64; }
  int depth() const { return two_level ? 2 : 7; }
};

// Means of center=profile.
struct Center {
  i64 source;         // index into Isa
  const float* mean;  // [num_heads, head_dim]
};

void center_take_off(const Call& call, const Center& center);
void center_put_back(const Call& call, const Center& center);
void raw_compress(const Call& call);
i64 raw_decompress(const Call& call);
void split_compress(const Call& call, Format format, SplitModel model, const Contexts* contexts);
i64 split_decompress(const Call& call, Format format, SplitModel model, const Contexts* contexts);
void fp8_compress(const Call& call, const Fp8& fp8);
i64 fp8_decompress(const Call& call, const Fp8& fp8);
void microscaling_compress(const Call& call, const Microscaling& ms);
i64 microscaling_decompress(const Call& call, const Microscaling& ms);
void bitplane_compress(const Call& call, const Bitplane& codec);
i64 bitplane_decompress(const Call& call, const Bitplane& codec);

// Scratch that a call of these sizes needs.
i64 split_compress_scratch(const Plane& plane, SplitModel model, i64 num_threads);
i64 split_decompress_scratch(const Plane& plane, SplitModel model, i64 n);
i64 fp8_scratch(const Plane& plane, i64 num_threads);
i64 microscaling_scratch(const Plane& plane, i64 num_threads);
i64 bitplane_scratch(const Plane& plane, i64 num_threads);  // either way

i64 fp8_row_nbytes(const Plane& plane, const Fp8& fp8);
i64 microscaling_row_nbytes(const Plane& plane, const Microscaling& ms);

void turboangle_compress(const Call& call, const TurboAngle& t);
i64 turboangle_decompress(const Call& call, const TurboAngle& t);
i64 turboangle_scratch(const Plane& plane, i64 num_threads);
i64 turboangle_row_nbytes(const Plane& plane, const TurboAngle& t);

}  // namespace kv
