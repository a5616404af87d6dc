// Modes 3 and 4 of split: rows coded with a profile's tables. A block goes through scratch in the
// order of its live channels, 16 bits an element (sign, exponent, leading mantissa bits), and its
// low mantissa bits in planes.
#include "split.h"

namespace kv {
namespace {

constexpr i64 kTokenWords = 8 * kMaxLanes;  // bytes of words that the steps of a token write

Walk make_walk(const Call& call, Format format, const Contexts& contexts, i64 tokens,
               bool history) {
  return {&contexts, num_lanes(call.plane.numel() * call.plane.itemsize),
          static_cast<u32>(kFormats[format].exponent_bits), leading_bits(format), tokens, history};
}

// Calls run(place, channel, length, gap) for the live channels of a token, in runs of neighbours;
// `place` counts live channels, and `gap` channels without elements follow. The first run may be
// empty.
template <class Run>
void for_each_live_run(const Contexts& contexts, const Run& run) {
  i64 place = 0, channel = 0;
  while (channel < contexts.channels) {
    i64 length = 0;
    while (place + length < contexts.live && contexts.number[place + length] == channel + length) {
      ++length;
    }
    const i64 next = place + length < contexts.live ? i64{contexts.number[place + length]}
                                                    : contexts.channels;
    run(place, channel, length, next - channel - length);
    place += length;
    channel = next;
  }
}

bool all_zero(const u8* data, i64 nbytes) {
  u8 any = 0;
  for (i64 i = 0; i < nbytes; ++i) any |= data[i];
  return any == 0;
}

// Elements [tokens, live] of a block; null if one that is left out is not zero.
const u8* live_elements(const Call& call, const Contexts& contexts, i64 id, i64 tokens,
                        u8* scratch) {
  const Plane& plane = call.plane;
  const i64 channels = contexts.channels, size = plane.itemsize;
  if (contexts.all_live()) {
    if (plane.run() == plane.numel()) return plane.block(id);
    copy_in(plane, id, 0, tokens * channels, scratch);
    return scratch;
  }
  u8* const token = scratch + tokens * contexts.live * size;
  bool sound = true;
  for (i64 t = 0; t < tokens; ++t) {
    copy_in(plane, id, t * channels, channels, token);
    u8* const to = scratch + t * contexts.live * size;
    for_each_live_run(contexts, [&](i64 place, i64 channel, i64 length, i64 gap) {
      std::memcpy(to + place * size, token + channel * size,
                  static_cast<std::size_t>(length * size));
      sound &= all_zero(token + (channel + length) * size, gap * size);
    });
  }
  return sound ? scratch : nullptr;
}

// Joins elements [first, first + count) of the live channels and writes them; planes begin there.
void join_live(const Call& call, Format format, const Contexts& contexts, i64 id, i64 first,
               i64 count, const u16* fields, const u8* const* planes) {
  const FormatInfo& info = kLowFormats[format];
  const Plane& plane = call.plane;
  const auto join = call.isa->join_low[format];
  if (contexts.all_live() && plane.run() == plane.numel()) {
    join(fields, planes, count, plane.block(id) + first * plane.itemsize);
    return;
  }
  alignas(64) u8 tile[kTile * 4];
  for (i64 done = 0; done < count; done += kTile) {
    const i64 now = count - done < kTile ? count - done : kTile;
    const u8* at[kMaxPlanes] = {};
    for (int p = 0; p < info.num_planes; ++p) at[p] = planes[p] + done * info.widths[p] / 8;
    join(fields + done, at, now, tile);
    if (contexts.all_live()) {
      copy_out(plane, id, first + done, now, tile);
      continue;
    }
    for (i64 i = 0; i < now; ++i) {
      const i64 at = first + done + i, channel = contexts.number[at % contexts.live];
      copy_out(plane, id, at / contexts.live * contexts.channels + channel, 1,
               tile + i * plane.itemsize);
    }
  }
}

// The parts of a row, from its counts; nothing is read before `end` was checked.
struct Parts {
  i64 words_nbytes, raw_nbytes;
  i64 states = kPrefix, words, raw, end;  // offsets

  Parts(const u8* row, int lanes)
      : words_nbytes(2 * i64{load<u32>(row + 4)}),
        raw_nbytes(load<u32>(row + 8)),
        words(states + 4 * lanes),
        raw(words + align16(words_nbytes)),
        end(raw + align16(raw_nbytes)) {}
};

}  // namespace

// Elements and a token, their fields, planes, and as many words as a raw row has bytes.
i64 tabled_encode_scratch(const Plane& plane) {
  const i64 numel = plane.numel(), nbytes = numel * plane.itemsize;
  return round_up(nbytes + plane.token_numel() * plane.itemsize) + round_up(2 * numel + kSlack) +
         round_up(nbytes + kMaxPlanes * kSlack) +
         round_up(nbytes + kPrefix + kTokenWords + 2 * kSlack);
}

void encode_tabled_row(const Call& call, Format format, SplitModel model, const Contexts& contexts,
                       i64 i, u8* scratch) {
  const FormatInfo& info = kLowFormats[format];
  const Plane& plane = call.plane;
  const i64 tokens = call.valid(i), n = tokens * contexts.live, numel = plane.numel();
  const Walk walk = make_walk(call, format, contexts, tokens, model == kContextModel);
  const RawPart part(info, n, walk.lanes);
  const i64 others = kPrefix + 4 * walk.lanes + align16(part.nbytes);
  if (tokens == 0 || others >= call.row_size(i)) return;

  u16* const fields = reinterpret_cast<u16*>(
      scratch + round_up((numel + plane.token_numel()) * plane.itemsize));
  u8* planes[kMaxPlanes] = {reinterpret_cast<u8*>(fields) + round_up(2 * numel + kSlack)};
  for (int p = 1; p < info.num_planes; ++p) {
    planes[p] = planes[p - 1] + (numel * info.widths[p - 1] + 7) / 8 + kSlack;
  }
  u8* const words_end = scratch + tabled_encode_scratch(plane);
  const u8* const elements = live_elements(call, contexts, call.block_ids[i], tokens, scratch);
  if (elements == nullptr) return;
  call.isa->split_low[format](elements, n, fields, planes);

  u32 states[kMaxLanes];
  for (int lane = 0; lane < walk.lanes; ++lane) {
    states[lane] = kLower | (lane < part.head ? seed_of(info, planes[0], lane) : 0);
  }
  u8* const lowest = words_end - (call.row_size(i) - others);
  const u8* const words = call.isa->encode_tabled(walk, states, fields, lowest, words_end);
  if (words == nullptr) return;
  const i64 words_nbytes = words_end - words, nbytes = others + align16(words_nbytes);
  if (nbytes >= call.row_size(i)) return;
  u8* const row = call.row(i);
  write_prefix(row, model == kContextModel ? kContext : kProfile, tokens);
  store(row + 4, static_cast<u32>(words_nbytes / 2));
  store(row + 8, static_cast<u32>(part.nbytes));
  u8* at = put_part(row + kPrefix, reinterpret_cast<const u8*>(states), 4 * walk.lanes);
  at = put_part(at, words, words_nbytes);
  put_raw(info, part, planes, at);
  call.set_row_size(i, nbytes);
}

Fault decode_tabled_row(const Call& call, Format format, const Contexts& contexts, i64 i,
                        u8* scratch) {
  const FormatInfo& info = kLowFormats[format];
  const u8* const row = call.row(i);
  const Fault fault = check_prefix(call, i);
  if (fault != kSound) return fault;
  const Walk walk = make_walk(call, format, contexts, num_valid_of(row), row[0] == kContext);
  const Parts parts(row, walk.lanes);
  if (parts.end != call.row_size(i)) return kTiling;
  if (walk.tokens == 0) return kEmpty;
  const RawPart part(info, walk.tokens * contexts.live, walk.lanes);
  if (parts.raw_nbytes != part.nbytes) return kRawPart;
  u32 states[kMaxLanes];
  std::memcpy(states, row + parts.states, static_cast<std::size_t>(4 * walk.lanes));
  for (int lane = 0; lane < walk.lanes; ++lane) {
    if (states[lane] < kLower) return kState;
  }
  const u8* const words = row + parts.words;
  const u8* const end = words + parts.words_nbytes;
  bool wide = false;
  u16* const fields = reinterpret_cast<u16*>(scratch + kHeadBytes);
  if (call.isa->decode_tabled(walk, states, words, end, row + call.row_size(i), wide, fields) !=
      end) {
    return kStream;
  }
  for (int lane = 0; lane < walk.lanes; ++lane) {
    if (states[lane] >> 16 != 1) return kStream;
  }
  if (wide) return kExponent;
  restore_head(info, part, states, row + parts.raw, scratch);
  return kSound;
}

void write_tabled_block(const Call& call, Format format, const Contexts& contexts, i64 i,
                        const u8* scratch) {
  const FormatInfo& info = kLowFormats[format];
  const Plane& plane = call.plane;
  const u8* const row = call.row(i);
  const i64 id = call.block_ids[i], n = num_valid_of(row) * contexts.live;
  const i64 used = contexts.all_live() ? n : 0;
  zero_out(plane, id, used, plane.numel() - used);
  const int lanes = num_lanes(plane.numel() * plane.itemsize);
  const Parts parts(row, lanes);
  const RawPart part(info, n, lanes);
  const i64 head = part.head * kGroup < n ? part.head * kGroup : n;
  const u16* const fields = reinterpret_cast<const u16*>(scratch + kHeadBytes);
  const u8* planes[kMaxPlanes] = {scratch};
  const u8* at = row + parts.raw + part.plane_nbytes[0];
  for (int p = 1; p < info.num_planes; ++p) {
    planes[p] = at;
    at += part.plane_nbytes[p];
  }
  join_live(call, format, contexts, id, 0, head, fields, planes);
  planes[0] = row + parts.raw + (info.widths[0] == 8 ? 2 * part.head : 0);
  for (int p = 1; p < info.num_planes; ++p) planes[p] += head * info.widths[p] / 8;
  join_live(call, format, contexts, id, head, n - head, fields + head, planes);
}

}  // namespace kv
