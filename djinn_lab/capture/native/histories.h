// What tensors were to autograd before a cell wrote them in place: such an op counts their version on, and gives them another graph where a
// gradient flows through it, whether it runs or not.
#pragma once
#include <torch/csrc/autograd/variable.h>
#include <unordered_set>
#include <vector>
#include "ops.h"

namespace djinn {
class Histories {
 public:
  explicit Histories(bool open = false) : open_(open) {}
  void remember(const Call& call, const Plan* plan, uint64_t made_before) {
    if (!open_) return;
    for (int i : plan->written) {
      auto& input = call.inputs[i];
      if (input.storage->made_since(made_before) || input.tensor->is_inference()) continue;
      remember(*input.tensor);
      if (input.tensor->is_view()) remember(input.tensor->_base());
    }
  }
  // The cell's code has ended: what others write from now on stays.
  void leave() {
    for (auto& one : kept_)
      if (auto impl = one.tensor.lock()) one.left = impl->version_counter().current_version();
  }
  void put_back() {
    for (auto& one : kept_) {
      auto impl = one.tensor.lock();
      if (!impl || impl->version_counter().current_version() != one.left) continue;
      auto* meta = torch::autograd::impl::get_autograd_meta(Tensor(impl));
      if (meta) {
        meta->grad_fn_ = one.function;
        meta->output_nr_ = one.output;
        meta->requires_grad_ = one.requires_grad;
      }
    }
    for (auto& one : kept_) {  // views have their base's version
      auto impl = one.tensor.lock();
      auto version = impl ? impl->version_counter() : c10::VariableVersion();
      if (impl && version.current_version() == one.left) version.set_version(one.version);
    }
  }

 private:
  struct History {
    c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> tensor;
    decltype(torch::autograd::AutogradMeta::grad_fn_) function;  // a pointer of one kind or another, by the version of torch
    uint32_t output;
    bool requires_grad;
    uint32_t version, left;
  };
  void remember(const at::TensorBase& tensor) {
    if (!known_.insert(tensor.unsafeGetTensorImpl()).second) return;
    auto* meta = torch::autograd::impl::get_autograd_meta(tensor);
    uint32_t version = tensor.unsafeGetTensorImpl()->version_counter().current_version();
    c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> weak(tensor.getIntrusivePtr());
    if (meta) kept_.push_back({std::move(weak), meta->grad_fn_, meta->output_nr_, meta->requires_grad_, version, version});
    else kept_.push_back({std::move(weak), {}, 0, false, version, version});
  }
  bool open_;
  std::vector<History> kept_;
  std::unordered_set<const c10::TensorImpl*> known_;
};
}  // namespace djinn
