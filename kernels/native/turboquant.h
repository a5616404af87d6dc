// turboquant: what a call needs besides its rows and blocks.
#pragma once

#include "call.h"

namespace kv {

constexpr i64 kMaxRotated = 1024;  // largest head_dim

struct Turboquant {
  i64 source;      // index into TurboquantLoops: element type
  i64 bits;        // of a code: 1 to 4
  bool wide_norm;  // norms are fp32, else fp16
};

void turboquant_compress(const Call& call, const Turboquant& codec);
i64 turboquant_decompress(const Call& call, const Turboquant& codec);
i64 turboquant_scratch(const Plane& plane, i64 num_threads);
i64 turboquant_row_nbytes(const Plane& plane, const Turboquant& codec);

}  // namespace kv
