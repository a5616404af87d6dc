#include "isa.h"

namespace kv {

const Isa& isa_baseline();
const Isa& isa_avx2();
const Isa& isa_avx512();

const Isa* isa_at(int index) {
  if (index == 0) return &isa_baseline();
#if defined(KV_EMULATE_AVX512)
  if (index == 2) return &isa_avx512();
#endif
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2") &&
                    __builtin_cpu_supports("popcnt");
  if (index == 1) return avx2 ? &isa_avx2() : nullptr;
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl");
  if (index == 2) return avx512 ? &isa_avx512() : nullptr;
#endif
  return nullptr;
}

const Isa* choose_isa(i64 index) {
  if (index >= 0) return index < kNumIsas ? isa_at(static_cast<int>(index)) : nullptr;
  for (int best = kNumIsas - 1; best > 0; --best) {
    if (const Isa* isa = isa_at(best)) return isa;
  }
  return isa_at(0);
}

}  // namespace kv
