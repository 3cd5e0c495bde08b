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
constexpr uint64_t DEFAULT_SETTINGS = uint64_t(c10::ScalarType::Float);

inline uint64_t numeric_settings() {
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
  return word;
}
// As msgspec writes a NumericSettings of djinn_lab/srg/program.py, or None for torch's defaults.
inline void write_settings(Writer& writer, uint64_t word) {
  if (word == DEFAULT_SETTINGS) return writer.nil();
  auto dtype = c10::ScalarType(word & 0xFF);
  writer.array(7);
  writer.text(dtype == c10::ScalarType::Double ? "float64" : dtype == c10::ScalarType::Half ? "float16" : dtype == c10::ScalarType::BFloat16 ? "bfloat16" : "float32");
  writer.boolean(!(word & MKLDNN_OFF));
  writer.boolean(word & DETERMINISTIC);
  writer.boolean(word & WARN_ONLY);
  writer.boolean(!(word & FILL_OFF));
  writer.boolean(word & FLUSH_DENORMAL);
  writer.text(word & MATMUL_HIGH ? "high" : word & MATMUL_MEDIUM ? "medium" : "highest");
}
}  // namespace djinn
