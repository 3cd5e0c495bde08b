// Which errors of the CPU's kernels a GPU finds only while it computes.
//
// The host of a GPU knows shapes and dtypes, not values. An error that only the values explain is an assertion in the
// kernel there: the call returns, and a later one raises.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <array>
#include <optional>
#include <string>
#include <string_view>

#include "mirror.h"

namespace standin {

// Of messages about values. Others may be about anything, and are raised at once.
constexpr std::array<std::string_view, 5> OF_VALUES = {
    "out of range", "out of bounds", "should be between 0 and 1", "probability tensor contains", "Expected p_in >= 0",
};

inline bool is_about_values(const c10::OperatorHandle& op, const std::string& message) {
  if (op.schema().name() == "aten::_assert_async") return true;  // whatever the caller's message says
  return std::any_of(OF_VALUES.begin(), OF_VALUES.end(),
                     [&](std::string_view part) { return message.find(part) != std::string::npos; });
}

// Returns uninitialised results by the shapes of the arguments alone, or nothing, and why, where they are what is wrong.
// Meta kernels may be Python's: no lock is held.
inline std::optional<torch::jit::Stack> results_by_shapes(const c10::OperatorHandle& op, torch::jit::Stack args,
                                                          std::string& why) {
  const auto to_meta = [](const at::Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(c10::kMeta));
  };
  const auto to_cpu = [](const at::Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(c10::kCPU));
  };
  for (c10::IValue& value : args)
    value = value.isDevice() ? c10::IValue(c10::Device(c10::kMeta)) : map_tensors(value, to_meta);
  try {
    op.callBoxed(&args);
  } catch (const std::exception& error) {
    why = error.what();
    return std::nullopt;
  }
  for (c10::IValue& value : args) value = map_tensors(value, to_cpu);
  return args;
}

}  // namespace standin
