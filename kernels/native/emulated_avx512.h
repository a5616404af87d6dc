// The AVX-512 intrinsics of isa_avx512.cpp in plain C++, so that its logic runs, and runs under
// sanitizers, on machines without them. Only the fuzz driver is built with KV_EMULATE_AVX512.
#pragma once

#include <cstdint>
#include <cstring>

// Calls, not inlined: unrolled loops of these would take minutes to compile under a sanitizer.
#define KV_CALL static __attribute__((noinline))

namespace kv {
namespace emulated {

struct M512 {
  std::uint32_t at[16];
};
struct M256 {
  std::uint16_t at[16];
};

template <class Map>
inline M512 map(const Map& of) {
  M512 r;
  for (int i = 0; i < 16; ++i) r.at[i] = of(i);
  return r;
}

// Lane i of eight 64-bit lanes.
inline std::uint64_t wide(M512 a, int i) {
  return a.at[2 * i] | std::uint64_t{a.at[2 * i + 1]} << 32;
}

template <class Map>
inline M512 map_wide(const Map& of) {
  M512 r;
  for (int i = 0; i < 8; ++i) {
    const std::uint64_t v = of(i);
    r.at[2 * i] = static_cast<std::uint32_t>(v);
    r.at[2 * i + 1] = static_cast<std::uint32_t>(v >> 32);
  }
  return r;
}

}  // namespace emulated
}  // namespace kv

using __m512i = kv::emulated::M512;
using __m256i = kv::emulated::M256;
using __mmask16 = std::uint16_t;
using kv::emulated::map;
using kv::emulated::map_wide;
using kv::emulated::wide;

KV_CALL __m512i _mm512_set1_epi32(int v) {
  return map([=](int) { return static_cast<std::uint32_t>(v); });
}
KV_CALL __m512i _mm512_setzero_si512() { return _mm512_set1_epi32(0); }
KV_CALL __m512i _mm512_set1_epi8(char v) {
  return map([=](int) { return 0x01010101u * static_cast<std::uint8_t>(v); });
}
KV_CALL __m512i _mm512_loadu_si512(const void* p) {
  __m512i r;
  std::memcpy(&r, p, 64);
  return r;
}
KV_CALL void _mm512_storeu_si512(void* p, __m512i a) { std::memcpy(p, &a, 64); }
KV_CALL __m256i _mm256_loadu_si256(const __m256i* p) {
  __m256i r;
  std::memcpy(&r, static_cast<const void*>(p), 32);
  return r;
}
KV_CALL __m512i _mm512_and_si512(__m512i a, __m512i b) {
  return map([=](int i) { return a.at[i] & b.at[i]; });
}
KV_CALL __m512i _mm512_or_si512(__m512i a, __m512i b) {
  return map([=](int i) { return a.at[i] | b.at[i]; });
}
KV_CALL __m512i _mm512_add_epi32(__m512i a, __m512i b) {
  return map([=](int i) { return a.at[i] + b.at[i]; });
}
KV_CALL __m512i _mm512_sub_epi32(__m512i a, __m512i b) {
  return map([=](int i) { return a.at[i] - b.at[i]; });
}
KV_CALL __m512i _mm512_mullo_epi32(__m512i a, __m512i b) {
  return map([=](int i) { return a.at[i] * b.at[i]; });
}
KV_CALL __m512i _mm512_srli_epi32(__m512i a, unsigned n) {
  return map([=](int i) { return n > 31 ? 0 : a.at[i] >> n; });
}
KV_CALL __m512i _mm512_slli_epi32(__m512i a, unsigned n) {
  return map([=](int i) { return n > 31 ? 0 : a.at[i] << n; });
}
KV_CALL __m512i _mm512_srlv_epi32(__m512i a, __m512i n) {
  return map([=](int i) { return n.at[i] > 31 ? 0 : a.at[i] >> n.at[i]; });
}
KV_CALL __m512i _mm512_mask_srli_epi32(__m512i src, __mmask16 m, __m512i a, unsigned n) {
  return map([=](int i) { return m >> i & 1 ? a.at[i] >> n : src.at[i]; });
}
KV_CALL __m512i _mm512_mask_or_epi32(__m512i src, __mmask16 m, __m512i a, __m512i b) {
  return map([=](int i) { return m >> i & 1 ? a.at[i] | b.at[i] : src.at[i]; });
}
KV_CALL __m512i _mm512_mask_blend_epi32(__mmask16 m, __m512i a, __m512i b) {
  return map([=](int i) { return m >> i & 1 ? b.at[i] : a.at[i]; });
}
KV_CALL __m512i _mm512_subs_epu8(__m512i a, __m512i b) {
  std::uint8_t x[64], y[64];
  std::memcpy(x, &a, 64);
  std::memcpy(y, &b, 64);
  for (int i = 0; i < 64; ++i) x[i] = static_cast<std::uint8_t>(x[i] > y[i] ? x[i] - y[i] : 0);
  std::memcpy(&a, x, 64);
  return a;
}
KV_CALL __mmask16 _mm512_cmplt_epu32_mask(__m512i a, __m512i b) {
  unsigned m = 0;
  for (int i = 0; i < 16; ++i) m |= static_cast<unsigned>(a.at[i] < b.at[i]) << i;
  return static_cast<__mmask16>(m);
}
KV_CALL __mmask16 _mm512_cmpgt_epu32_mask(__m512i a, __m512i b) {
  return _mm512_cmplt_epu32_mask(b, a);
}
KV_CALL __m512i _mm512_i32gather_epi32(__m512i index, const void* base, int scale) {
  return map([=](int i) {
    std::uint32_t v;
    const auto offset = static_cast<std::int64_t>(static_cast<std::int32_t>(index.at[i])) * scale;
    std::memcpy(&v, static_cast<const char*>(base) + offset, 4);
    return v;
  });
}
KV_CALL __m512i _mm512_permutex2var_epi32(__m512i a, __m512i index, __m512i b) {
  return map([=](int i) {
    return index.at[i] & 16 ? b.at[index.at[i] & 15] : a.at[index.at[i] & 15];
  });
}
KV_CALL __m512i _mm512_maskz_expand_epi32(__mmask16 m, __m512i a) {
  int next = 0;
  return map([&](int i) { return m >> i & 1 ? a.at[next++] : 0; });
}
KV_CALL __m512i _mm512_maskz_compress_epi32(__mmask16 m, __m512i a) {
  __m512i r = _mm512_setzero_si512();
  int next = 0;
  for (int i = 0; i < 16; ++i) {
    if (m >> i & 1) r.at[next++] = a.at[i];
  }
  return r;
}
KV_CALL __m512i _mm512_cvtepu16_epi32(__m256i a) {
  return map([=](int i) { return std::uint32_t{a.at[i]}; });
}
KV_CALL __m256i _mm512_cvtepi32_epi16(__m512i a) {
  __m256i r;
  for (int i = 0; i < 16; ++i) r.at[i] = static_cast<std::uint16_t>(a.at[i]);
  return r;
}
KV_CALL void _mm256_mask_storeu_epi16(void* p, __mmask16 m, __m256i a) {
  for (int i = 0; i < 16; ++i) {
    if (m >> i & 1) std::memcpy(static_cast<char*>(p) + 2 * i, &a.at[i], 2);
  }
}
KV_CALL __m512i _mm512_mul_epu32(__m512i a, __m512i b) {
  return map_wide([=](int i) { return (wide(a, i) & 0xFFFFFFFF) * (wide(b, i) & 0xFFFFFFFF); });
}
KV_CALL __m512i _mm512_srli_epi64(__m512i a, unsigned n) {
  return map_wide([=](int i) { return n > 63 ? 0 : wide(a, i) >> n; });
}
