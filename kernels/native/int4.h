// int4: what a call needs besides its rows and blocks.
#pragma once

#include "call.h"

namespace kv {

struct Int4 {
  i64 source, meta;  // indices into Int4Loops: element type, type of scales and zeros
  i64 width;         // bits of a code: 4 or 2
  i64 group;
  bool along_tokens;  // a group is tokens of one channel, else channels of one token
};

void int4_compress(const Call& call, const Int4& int4);
i64 int4_decompress(const Call& call, const Int4& int4);
i64 int4_scratch(const Plane& plane, i64 num_threads);
i64 int4_row_nbytes(const Plane& plane, const Int4& int4);

}  // namespace kv
