// What tensors were to autograd before a cell wrote them in place: such an op counts their version on, and gives them another graph where a
// gradient flows through it, whether it runs or not. All but `put_back` need the recorder's lock.
#pragma once
#include <torch/csrc/autograd/variable.h>
#include <unordered_set>
#include <vector>
#include "ops.h"

namespace djinn {
struct History {
  c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> tensor;
  decltype(torch::autograd::AutogradMeta::grad_fn_) function;  // a pointer of one kind or another, by the version of torch
  uint32_t output, version, view_version;  // the last: of the base, when a view's graph was made
  bool requires_grad;
  uint64_t segment;  // the node that writes it is the one at `position` of its segment
  size_t position;
  int64_t left = -1;  // its version when the cell's code had ended
};
using Written = std::vector<History>;

inline torch::autograd::DifferentiableViewMeta* view_meta(const at::TensorBase& tensor) {
  auto* meta = torch::autograd::impl::get_view_autograd_meta(tensor);
  return meta && meta->has_bw_view() ? meta : nullptr;
}

class Histories {
 public:
  void remember(const Call& call, const Plan* plan, uint64_t made_before, uint64_t segment, size_t position) {
    if (segment != segment_) known_.clear(), segment_ = segment;
    for (int i : plan->written) {
      auto& input = call.inputs[i];
      if (!input.storage->made_since(made_before)) remember(*input.tensor, position);
    }
  }
  void remember(const at::TensorBase& tensor, uint64_t segment, size_t position) {
    if (segment != segment_) known_.clear(), segment_ = segment;
    remember(tensor, position);
  }
  // The cell's code has ended: what others write from now on stays.
  void leave() {
    for (auto& one : kept_)
      if (auto impl = one.tensor.lock()) one.left = impl->version_counter().current_version();
  }
  // Of a segment, from the node at `position` on.
  Written take(uint64_t segment, size_t position) {
    Written taken, kept;
    for (auto& one : kept_) (one.segment == segment && one.position >= position ? taken : kept).push_back(std::move(one));
    kept_.swap(kept);
    return taken;
  }
  Written take_all() {
    known_.clear();
    return std::exchange(kept_, {});
  }

 private:
  void remember(const at::TensorBase& tensor, size_t position) {
    if (tensor.is_inference()) return;
    keep(tensor, position);
    if (tensor.is_view()) keep(tensor._base(), position);
  }
  void keep(const at::TensorBase& tensor, size_t position) {
    if (!known_.insert(tensor.unsafeGetTensorImpl()).second) return;
    auto* meta = torch::autograd::impl::get_autograd_meta(tensor);
    auto* view = view_meta(tensor);
    uint32_t version = tensor.unsafeGetTensorImpl()->version_counter().current_version();
    kept_.push_back({c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>(tensor.getIntrusivePtr()), {}, 0, version,
                     view ? view->get_attr_version() : 0, false, segment_, position});
    if (!meta) return;
    kept_.back().function = meta->grad_fn_;
    kept_.back().output = meta->output_nr_;
    kept_.back().requires_grad = meta->requires_grad_;
  }
  uint64_t segment_ = 0;
  Written kept_;
  std::unordered_set<const c10::TensorImpl*> known_;
};

// Tensors are to autograd what they were, unless they were written since the cell. `done`: and these are.
inline void put_back(Written& written, std::unordered_set<const c10::TensorImpl*>& done) {
  std::unordered_set<const c10::StorageImpl*> current;  // whose version is as the cell left it, or was put back here; views have their base's
  for (auto& one : written)
    if (auto impl = one.tensor.lock())
      if (one.left < 0 || one.left == impl->version_counter().current_version()) current.insert(impl->unsafe_storage().unsafeGetStorageImpl());
  for (auto at = written.rbegin(); at != written.rend(); ++at) {
    auto impl = at->tensor.lock();
    if (!impl || !current.count(impl->unsafe_storage().unsafeGetStorageImpl())) continue;
    Tensor tensor(impl);
    if (auto* meta = torch::autograd::impl::get_autograd_meta(tensor)) {
      meta->grad_fn_ = at->function;
      meta->output_nr_ = at->output;
      meta->requires_grad_ = at->requires_grad;
    }
    if (auto* view = view_meta(tensor)) view->set_attr_version(at->view_version);
    auto version = impl->version_counter();
    version.set_version(at->version);
    done.insert(impl.get());
  }
}
// A view of a base that was put back, which made itself a graph from the one that the base had in between.
inline void renew_view(const Tensor& tensor, const std::unordered_set<const c10::TensorImpl*>& done) {
  auto* view = view_meta(tensor);
  if (!view || done.count(tensor.unsafeGetTensorImpl()) || !done.count(tensor._base().unsafeGetTensorImpl())) return;
  auto version = tensor.unsafeGetTensorImpl()->version_counter().current_version();
  if (view->get_attr_version() == version) return;
  if (tensor._base().requires_grad()) return view->set_attr_version(UINT32_MAX);  // it makes itself one when it is asked
  view->grad_fn_ = {};
  view->output_nr_ = 0;
  view->set_attr_version(version);
}
}  // namespace djinn
