// Numeric settings of this process's torch that change what ops compute, in one word.
#pragma once
#include <ATen/Context.h>
#include <c10/core/DefaultDtype.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif
#include "messagepack.h"

namespace djinn {
constexpr uint64_t MKLDNN_OFF = 1 << 8, DETERMINISTIC = 1 << 9, WARN_ONLY = 1 << 10, FILL_OFF = 1 << 11, FLUSH_DENORMAL = 1 << 12,
                   MATMUL_HIGH = 1 << 13, MATMUL_MEDIUM = 1 << 14;
// Of accelerators: read only where the pool has some.
constexpr uint64_t CUDNN_OFF = 1 << 16, CUDNN_TF32_OFF = 1 << 17, CUDNN_BENCHMARK = 1 << 18, CUDNN_DETERMINISTIC = 1 << 19,
                   HALF_REDUCTION_OFF = 1 << 20, BFLOAT16_REDUCTION_OFF = 1 << 21, HALF_ACCUMULATION = 1 << 22, FLASH_OFF = 1 << 23,
                   MEM_EFFICIENT_OFF = 1 << 24, MATH_OFF = 1 << 25, CUDNN_ATTENTION_OFF = 1 << 26, REPLAYABLE = 1 << 27;
constexpr uint64_t DEFAULT_SETTINGS = uint64_t(c10::ScalarType::Float);

inline bool allows_reduction(bool allowed) { return allowed; }  // as torch had it before the choice of split K
template <class Option>
bool allows_reduction(Option option) {
  return option != Option::DisallowReducedPrecisionAllowSplitK && option != Option::DisallowReducedPrecisionDisallowSplitK;
}
inline uint64_t accelerator_settings() {
  auto& context = at::globalContext();
  uint64_t word = 0;
  if (!context.userEnabledCuDNN()) word |= CUDNN_OFF;
  if (context.float32Precision(at::Float32Backend::CUDA, at::Float32Op::CONV) != at::Float32Precision::TF32) word |= CUDNN_TF32_OFF;
  if (context.benchmarkCuDNN()) word |= CUDNN_BENCHMARK;
  if (context.deterministicCuDNN()) word |= CUDNN_DETERMINISTIC;
  if (!allows_reduction(context.allowFP16ReductionCuBLAS())) word |= HALF_REDUCTION_OFF;
  if (!allows_reduction(context.allowBF16ReductionCuBLAS())) word |= BFLOAT16_REDUCTION_OFF;
  if (context.allowFP16AccumulationCuBLAS()) word |= HALF_ACCUMULATION;
  if (!context.userEnabledFlashSDP()) word |= FLASH_OFF;
  if (!context.userEnabledMemEfficientSDP()) word |= MEM_EFFICIENT_OFF;
  if (!context.userEnabledMathSDP()) word |= MATH_OFF;
  if (!context.userEnabledCuDNNSDP()) word |= CUDNN_ATTENTION_OFF;
  return word;
}

inline uint64_t numeric_settings(bool for_accelerators, bool replayable) {
  auto& context = at::globalContext();
  uint64_t word = uint64_t(c10::get_default_dtype_as_scalartype());
  if (C10_UNLIKELY(!context.userEnabledMkldnn())) word |= MKLDNN_OFF;
  if (C10_UNLIKELY(context.deterministicAlgorithms())) word |= DETERMINISTIC;
  if (C10_UNLIKELY(context.deterministicAlgorithmsWarnOnly())) word |= WARN_ONLY;
  if (C10_UNLIKELY(!context.deterministicFillUninitializedMemory())) word |= FILL_OFF;
#if defined(__x86_64__)
  if (C10_UNLIKELY(_mm_getcsr() & 0x8040)) word |= FLUSH_DENORMAL;  // flush to zero, denormals are zero
#endif
  // Not float32MatmulPrecision(), which throws after ``fp32_precision`` was set.
  if (C10_UNLIKELY(context.float32Precision(at::Float32Backend::CUDA, at::Float32Op::MATMUL) == at::Float32Precision::TF32)) {
    bool is_medium = context.float32Precision(at::Float32Backend::MKLDNN, at::Float32Op::MATMUL) == at::Float32Precision::BF16;
    word |= is_medium ? MATMUL_MEDIUM : MATMUL_HIGH;
  }
  if (C10_UNLIKELY(for_accelerators)) word |= accelerator_settings() | (replayable ? REPLAYABLE : 0);
  return word;
}
// As msgspec writes a NumericSettings of djinn_lab/srg/program.py, or None for torch's defaults.
inline void write_settings(Writer& writer, uint64_t word) {
  if (word == DEFAULT_SETTINGS) return writer.nil();
  auto dtype = c10::ScalarType(word & 0xFF);
  writer.array(word >> 16 ? 19 : 7);
  writer.text(dtype == c10::ScalarType::Double ? "float64" : dtype == c10::ScalarType::Half ? "float16" : dtype == c10::ScalarType::BFloat16 ? "bfloat16" : "float32");
  writer.boolean(!(word & MKLDNN_OFF));
  writer.boolean(word & DETERMINISTIC);
  writer.boolean(word & WARN_ONLY);
  writer.boolean(!(word & FILL_OFF));
  writer.boolean(word & FLUSH_DENORMAL);
  writer.text(word & MATMUL_HIGH ? "high" : word & MATMUL_MEDIUM ? "medium" : "highest");
  if (!(word >> 16)) return;
  writer.boolean(word & REPLAYABLE);
  writer.boolean(!(word & CUDNN_OFF));
  writer.boolean(!(word & CUDNN_TF32_OFF));
  writer.boolean(word & CUDNN_BENCHMARK);
  writer.boolean(word & CUDNN_DETERMINISTIC);
  writer.boolean(!(word & HALF_REDUCTION_OFF));
  writer.boolean(!(word & BFLOAT16_REDUCTION_OFF));
  writer.boolean(word & HALF_ACCUMULATION);
  writer.boolean(!(word & FLASH_OFF));
  writer.boolean(!(word & MEM_EFFICIENT_OFF));
  writer.boolean(!(word & MATH_OFF));
  writer.boolean(!(word & CUDNN_ATTENTION_OFF));
}
}  // namespace djinn
