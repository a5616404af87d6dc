// Blocks of a paged cache: element i of a block, in [token, head, dim] order, through strides.
#pragma once

#include "common.h"

namespace kv {

struct Plane {
  u8* data;
  i64 num_blocks, block_size, num_heads, head_dim;
  i64 stride_block, stride_token, stride_head, stride_element;  // in elements
  i64 itemsize;

  i64 token_numel() const { return num_heads * head_dim; }
  i64 numel() const { return block_size * token_numel(); }

  // Whether a head's elements lie side by side.
  bool packed_heads() const { return stride_element == 1 || head_dim == 1; }

  // Elements that lie side by side: one, a head, a token or the whole block.
  i64 run() const {
    if (!packed_heads()) return 1;
    if (num_heads > 1 && stride_head != head_dim) return head_dim;
    if (block_size > 1 && stride_token != token_numel()) return token_numel();
    return numel();
  }

  u8* block(i64 id) const { return data + id * stride_block * itemsize; }

  // Address of the element at (token, head, dim) of a block.
  u8* at(i64 id, i64 token, i64 head, i64 dim) const {
    const i64 offset = token * stride_token + head * stride_head + dim * stride_element;
    return block(id) + offset * itemsize;
  }
};

// Copies short runs without a library call each: a run of a head is often 128 or 256 bytes.
inline void copy_run(u8* to, const u8* from, i64 nbytes) {
  if (nbytes > 2048) {
    std::memcpy(to, from, static_cast<std::size_t>(nbytes));
    return;
  }
  i64 done = 0;
  for (; done + 16 <= nbytes; done += 16) std::memcpy(to + done, from + done, 16);
  for (; done < nbytes; ++done) to[done] = from[done];
}

// Calls move(address, offset, length) for every run of elements [first, first + count); offset is
// counted from `first`. Needs packed heads.
template <class Move>
void for_each_run(const Plane& plane, i64 id, i64 first, i64 count, Move move) {
  const i64 run = plane.run();
  i64 head = 0, token = 0, within = first % run;
  if (run == plane.head_dim) {
    token = first / plane.token_numel();
    head = first / run % plane.num_heads;
  } else if (run < plane.numel()) {
    token = first / run;
  }
  for (i64 offset = 0; offset < count;) {
    const i64 length = run - within < count - offset ? run - within : count - offset;
    move(plane.at(id, token, head, 0) + within * plane.itemsize, offset, length);
    offset += length;
    within = 0;
    if (run == plane.head_dim && ++head < plane.num_heads) continue;
    head = 0;
    ++token;
  }
}

// As for_each_run with runs of one element, for any element stride.
template <class Move>
void for_each_element(const Plane& plane, i64 id, i64 first, i64 count, Move move) {
  i64 token = first / plane.token_numel(), head = first / plane.head_dim % plane.num_heads;
  i64 dim = first % plane.head_dim;
  for (i64 offset = 0; offset < count; ++offset) {
    move(plane.at(id, token, head, dim), offset, i64{1});
    if (++dim < plane.head_dim) continue;
    dim = 0;
    if (++head < plane.num_heads) continue;
    head = 0;
    ++token;
  }
}

template <class Move>
void for_each_piece(const Plane& plane, i64 id, i64 first, i64 count, Move move) {
  if (plane.packed_heads()) {
    for_each_run(plane, id, first, count, move);
  } else {
    for_each_element(plane, id, first, count, move);
  }
}

// Elements [first, first + count) of a block to packed memory.
inline void copy_in(const Plane& plane, i64 id, i64 first, i64 count, u8* to) {
  const i64 size = plane.itemsize;
  for_each_piece(plane, id, first, count, [=](const u8* at, i64 offset, i64 length) {
    copy_run(to + offset * size, at, length * size);
  });
}

// Packed memory to elements [first, first + count) of a block.
inline void copy_out(const Plane& plane, i64 id, i64 first, i64 count, const u8* from) {
  const i64 size = plane.itemsize;
  for_each_piece(plane, id, first, count, [=](u8* at, i64 offset, i64 length) {
    copy_run(at, from + offset * size, length * size);
  });
}

// Zeros to elements [first, first + count) of a block.
inline void zero_out(const Plane& plane, i64 id, i64 first, i64 count) {
  const i64 size = plane.itemsize;
  for_each_piece(plane, id, first, count, [=](u8* at, i64, i64 length) {
    std::memset(at, 0, static_cast<std::size_t>(length * size));
  });
}

}  // namespace kv
