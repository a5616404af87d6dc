#include "split.h"

namespace kv {

u32 seed_of(const FormatInfo& format, const u8* plane, i64 group) {
  if (format.num_planes == 0) return 0;
  if (format.widths[0] == 2) return plane[group];
  return load<u16>(plane + group * kGroup * format.widths[0] / 8);
}

u8* put_raw(const FormatInfo& format, const RawPart& part, u8* const* planes, u8* at) {
  u8* const end = at + align16(part.nbytes);
  if (part.nbytes == 0) return end;
  const u8* rest = planes[0] + part.head * kGroup * format.widths[0] / 8;
  i64 rest_nbytes = part.plane_nbytes[0];
  if (format.widths[0] == 8) {
    for (i64 group = 0; group < part.head; ++group) {
      std::memcpy(at, planes[0] + kGroup * group + 2, 2);
      at += 2;
    }
    rest_nbytes -= 2 * part.head;
  }
  std::memcpy(at, rest, static_cast<std::size_t>(rest_nbytes));
  at += rest_nbytes;
  for (int p = 1; p < format.num_planes; ++p) {
    std::memcpy(at, planes[p], static_cast<std::size_t>(part.plane_nbytes[p]));
    at += part.plane_nbytes[p];
  }
  std::memset(at, 0, static_cast<std::size_t>(end - at));
  return end;
}

namespace {

// Of a centred row: four arrays of a byte a channel, then symbols.
i64 centring_scratch(const Plane& plane) {
  return 4 * round_up(plane.token_numel() + kSlack) + round_up(plane.numel() + kSlack);
}

// Per worker: that, exponents, planes (at most the element's own bytes) and words.
i64 encode_scratch(const Plane& plane) {
  const i64 numel = plane.numel();
  return centring_scratch(plane) + round_up(numel + kSlack) + round_up(numel * plane.itemsize + kMaxPlanes * kSlack) +
         round_up(2 * numel + kSlack);
}

// Splits elements [0, n) of a block, through a tile when they do not lie side by side.
void split_block(const Call& call, Format format, i64 id, i64 n, u8* exponents,
                 u8* const* planes) {
  const auto split = call.isa->split[format];
  if (call.plane.run() == call.plane.numel()) {
    split(call.plane.block(id), n, exponents, planes);
    return;
  }
  alignas(64) u8 tile[kTile * 4];
  for (i64 first = 0; first < n; first += kTile) {
    const i64 count = n - first < kTile ? n - first : kTile;
    copy_in(call.plane, id, first, count, tile);
    u8* at[kMaxPlanes] = {};
    for (int p = 0; p < kFormats[format].num_planes; ++p) {
      at[p] = planes[p] + first * kFormats[format].widths[p] / 8;
    }
    split(tile, count, exponents + first, at);
  }
}

// Bytes that a table and its words take, nearly; formats/split.md has the formula.
i64 estimate(const Model& model, const u32* counts) {
  u64 total = 0;
  for (int i = 0; i < model.size; ++i) {
    const u32 freq = model.freqs[i];
    u32 power = kProbBits;
    while (freq >> power == 0) --power;
    const u32 x = (freq << (kProbBits - power)) - kTotal;
    const u32 cost = ((kProbBits - power) << 12) - x - (11 * x * (kTotal - x) >> 17);
    total += u64{counts[model.symbols[i]]} * cost;
  }
  return align16(3 * model.size) + static_cast<i64>(total >> 15);
}

// What a coded row says before its states, and the symbols that are coded.
struct Coding {
  u8 mode;
  const u8* symbols;
  Model model;
  const u8* centres;  // the part of a centred row, else null
  i64 centres_nbytes;
};

// Takes the channels' centres off, where that pays; scratch is `centring_scratch`.
void centre(const Call& call, int exponent_bits, i64 tokens, const u32* counts, Coding& coding,
            u8* scratch) {
  const i64 channels = call.plane.token_numel(), each = round_up(channels + kSlack);
  u8* const fields = scratch;
  u8* const origins = fields + each;
  u8* const work = origins + each;
  u8* const part = work + each;
  u8* const symbols = part + each;
  call.isa->centres(coding.symbols, tokens, channels, fields);
  i64 sum = 0;
  for (i64 c = 0; c < channels; ++c) sum += fields[c];
  const i64 first = (2 * sum + channels) / (2 * channels) - 3;
  const u8 base = static_cast<u8>(first - (i64{1} << (exponent_bits - 1)));
  for (i64 c = 0; c < channels; ++c) {
    const i64 field = fields[c] - first;
    fields[c] = static_cast<u8>(field < 0 ? 0 : field > 7 ? 7 : field);
    origins[c] = static_cast<u8>(base + fields[c]);
  }
  std::memset(fields + channels, 0, 8);
  const u8 mask = static_cast<u8>((1 << exponent_bits) - 1);
  const i64 n = tokens * channels;
  call.isa->subtract_origins(origins, tokens, channels, mask, coding.symbols, symbols);

  const i64 nbytes = centres_nbytes(channels);
  u32 centred_counts[256];
  Model model;
  call.isa->count_centred(symbols, n, static_cast<u8>(1 << (exponent_bits - 1)), centred_counts);
  normalize(centred_counts, static_cast<u64>(n), model);
  if (estimate(model, centred_counts) + align16(nbytes) >= estimate(coding.model, counts)) return;
  call.isa->pack_centres(fields, channels, base, work, part);
  coding = {kCentred, symbols, model, part, nbytes};
}

void encode_block(const Call& call, Format format, SplitModel kind, i64 i, u8* scratch) {
  const FormatInfo& info = kFormats[format];
  const Plane& plane = call.plane;
  const i64 numel = plane.numel(), n = call.valid(i) * plane.token_numel();
  const i64 raw_nbytes = n * plane.itemsize;
  u8* const row = call.row(i);
  i64 coded_nbytes = INT64_MAX;
  if (n > 0) {
    u8* const exponents = scratch + centring_scratch(plane);
    u8* planes[kMaxPlanes] = {};
    planes[0] = exponents + round_up(numel + kSlack);
    u8* const words_end = scratch + encode_scratch(plane);
    for (int p = 1; p < info.num_planes; ++p) {
      planes[p] = planes[p - 1] + (numel * info.widths[p - 1] + 7) / 8 + kSlack;
    }
    split_block(call, format, call.block_ids[i], n, exponents, planes);

    u32 counts[256];
    Coding coding{kCoded, exponents, {}, nullptr, 0};
    call.isa->count(exponents, n, counts);
    normalize(counts, static_cast<u64>(n), coding.model);
    if (kind != kPlainModel) {
      centre(call, info.exponent_bits, call.valid(i), counts, coding, scratch);
    }
    const Model& model = coding.model;
    const int lanes = num_lanes(numel * plane.itemsize);
    const RawPart part(info, n, lanes);
    u32 states[kMaxLanes];
    for (int lane = 0; lane < lanes; ++lane) {
      states[lane] = kLower | (lane < part.head ? seed_of(info, planes[0], lane) : 0);
    }
    const u8* words = words_end;
    if (!model.single()) {
      EncodeTable table;
      fill_encode_table(model, table);
      words = call.isa->encode(lanes, table, states, coding.symbols, n, words_end);
    }
    const i64 words_nbytes = words_end - words;
    u8 entries[768];
    const i64 table_nbytes = write_table(model, entries);
    coded_nbytes = kPrefix + align16(table_nbytes) + align16(coding.centres_nbytes) + 4 * lanes +
                   align16(words_nbytes) + align16(part.nbytes);
    if (coded_nbytes < kPrefix + align16(raw_nbytes)) {
      write_prefix(row, coding.mode, call.valid(i));
      store(row + 4, static_cast<u32>(table_nbytes));
      store(row + 8, static_cast<u32>(words_nbytes / 2));
      store(row + 12, static_cast<u32>(part.nbytes));
      u8* at = put_part(row + kPrefix, entries, table_nbytes);
      if (coding.mode == kCentred) at = put_part(at, coding.centres, coding.centres_nbytes);
      at = put_part(at, reinterpret_cast<const u8*>(states), 4 * lanes);
      at = put_part(at, words, words_nbytes);
      put_raw(info, part, planes, at);
      call.set_row_size(i, coded_nbytes);
      return;
    }
  }
  write_prefix(row, kRaw, call.valid(i));
  store(row + 4, static_cast<u32>(raw_nbytes));
  copy_in(plane, call.block_ids[i], 0, n, row + kPrefix);
  std::memset(row + kPrefix + raw_nbytes, 0,
              static_cast<std::size_t>(align16(raw_nbytes) - raw_nbytes));
  call.set_row_size(i, kPrefix + align16(raw_nbytes));
}

}  // namespace

i64 split_compress_scratch(const Plane& plane, SplitModel model, i64 num_threads) {
  const i64 tabled = is_tabled(model) ? tabled_encode_scratch(plane) : 0;
  return num_threads * (encode_scratch(plane) > tabled ? encode_scratch(plane) : tabled);
}

void split_compress(const Call& call, Format format, SplitModel model, const Contexts* contexts) {
  const i64 each = split_compress_scratch(call.plane, model, 1);
  parallel_for(call.num_threads, call.n, [&](i64 worker, i64 i) {
    u8* const scratch = call.scratch + worker * each;
    encode_block(call, format, model, i, scratch);
    if (is_tabled(model)) encode_tabled_row(call, format, model, *contexts, i, scratch);
  });
}

}  // namespace kv
