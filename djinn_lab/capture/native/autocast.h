// Autocast by CUDA's rules, whatever device the pool has: code that says "cuda" gets the dtypes that it gets there.
//
// Tensors of the pool say that they are on the CPU, and its lists are others. So CUDA's lists, which torch has as macros, are
// registered for a key that no device has here. A cell includes the key; torch's autocast for "ipu" switches it on and off, and
// keeps its dtype.
#pragma once
#include <ATen/autocast_mode.h>
#include <torch/library.h>

namespace djinn {
constexpr c10::DispatchKey CUDA_RULES = c10::DispatchKey::AutocastIPU;

// While a rule is applied none is to what the op calls. Torch's casts for the CPU ask for the CPU's dtype.
class InRule {
 public:
  InRule() { at::autocast::set_autocast_dtype(at::kCPU, at::autocast::get_autocast_dtype(at::kIPU)); }
  ~InRule() { at::autocast::set_autocast_dtype(at::kCPU, before_); }

 private:
  c10::impl::ExcludeDispatchKeyGuard none_{CUDA_RULES};
  at::ScalarType before_ = at::autocast::get_autocast_dtype(at::kCPU);
};

template <auto rule>
struct Ruled;
template <class Result, class... Arguments, Result (*rule)(Arguments...)>
struct Ruled<rule> {
  static Result call(Arguments... arguments) {
    InRule here;
    return rule(std::forward<Arguments>(arguments)...);
  }
};

// CUDA's kernels for it refuse half precision under autocast, and say what to use.
inline at::Tensor refuse_cross_entropy(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, int64_t) {
  TORCH_CHECK(false,
              "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast. Use "
              "binary_cross_entropy_with_logits or BCEWithLogits, which are safe to autocast.");
}
}  // namespace djinn

#define DJINN_RULE(POLICY, REGISTERED, CALLED, FUNCTION)                                                                     \
  &::djinn::Ruled<&::at::autocast::WrapFunction<::at::autocast::CastPolicy::POLICY, c10::DeviceType::CPU, REGISTERED, CALLED, \
                                                FUNCTION>::type::call>::call
#undef KERNEL1
#undef KERNEL2
#define KERNEL1(DEVICE, OP, POLICY) library.impl("aten::" #OP, DJINN_RULE(POLICY, decltype(ATEN_FN(OP)), decltype(ATEN_FN(OP)), &ATEN_FN(OP)));
#define KERNEL2(DEVICE, OP, OVERLOAD, POLICY) \
  library.impl("aten::" #OP "." #OVERLOAD,    \
               DJINN_RULE(POLICY, decltype(ATEN_FN2(OP, OVERLOAD)), decltype(ATEN_FN2(OP, OVERLOAD)), &ATEN_FN2(OP, OVERLOAD)));
#define DJINN_LOWER(...) KERNEL_CPU(__VA_ARGS__, lower_precision_fp)
#define DJINN_FP32(...) KERNEL_CPU(__VA_ARGS__, fp32)
#define DJINN_FP32_SET(...) KERNEL_CPU(__VA_ARGS__, fp32_set_opt_dtype)
#define DJINN_PROMOTE(...) KERNEL_CPU(__VA_ARGS__, promote)
#define DJINN_APPEND(FUNCTION, NAME, REGISTERED, CALLED, POLICY) \
  library.impl("aten::" NAME, DJINN_RULE(POLICY, REGISTERED, CALLED, &FUNCTION));

namespace at {  // where the names in torch's macros are
TORCH_LIBRARY_IMPL(_, AutocastIPU, library) { library.fallback(torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, AutocastIPU, library) {
  AT_FORALL_LOWER_PRECISION_FP(DJINN_LOWER)
  AT_FORALL_FP32(DJINN_FP32)
  AT_FORALL_FP32_SET_OPT_DTYPE(DJINN_FP32_SET)
  AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(DJINN_APPEND)
  AT_FORALL_PROMOTE(DJINN_PROMOTE)
  library.impl("aten::binary_cross_entropy", &djinn::refuse_cross_entropy);
}
}  // namespace at
