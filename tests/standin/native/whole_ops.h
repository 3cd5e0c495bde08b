// Ops that a GPU has kernels of its own for, and that torch would take apart for a device it does not know.
//
// layer_norm, convolution, foreach ops and some 600 others have a composite kernel, which wins over a device's
// fallback. Registered for the device by themselves, each is one launch.
#pragma once

#include "kernels.h"

namespace standin {

inline bool is_whole(const c10::OperatorHandle& op) {
  using Key = c10::DispatchKey;
  const std::string& name = op.operator_name().name;
  if (name.rfind("aten::", 0) != 0 || op.hasKernelForDispatchKey(Key::PrivateUse1)) return false;
  const bool is_explicit = op.hasKernelForDispatchKey(Key::CompositeExplicitAutograd);
  const bool is_composite = is_explicit || op.hasKernelForDispatchKey(Key::CompositeImplicitAutograd) ||
                            op.hasKernelForDispatchKey(Key::CompositeExplicitAutogradNonFunctional);
  if (op.hasKernelForDispatchKey(Key::CPU)) return is_composite;
  if (name == "aten::convolution" || name == "aten::convolution_backward") return true;
  return name.rfind("aten::_foreach_", 0) == 0 && is_explicit;
}

inline std::vector<c10::RegistrationHandleRAII> whole_ops() {
  std::vector<c10::RegistrationHandleRAII> kept;
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findOp(name);
    if (!op.has_value() || !is_whole(*op)) continue;
    kept.push_back(dispatcher.registerImpl(name, c10::DispatchKey::PrivateUse1,
                                           c10::KernelFunction::makeFromBoxedFunction<&run_kernel>(), std::nullopt,
                                           nullptr, "standin"));
  }
  return kept;
}

}  // namespace standin
