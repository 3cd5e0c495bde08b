// Any op, computed by the CPU's kernel when it is launched.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <ATen/native/Resize.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <exception>
#include <set>

#include "generator.h"
#include "graphs.h"
#include "guard.h"
#include "late_faults.h"
#include "launch.h"
#include "mirror.h"

namespace standin {

// Ops that take tensors of the host beside the device's: indices that are moved, lengths that the host reads.
inline const std::set<std::string> TAKES_HOST_TENSORS = {
    "aten::index", "aten::index_put_", "aten::_index_put_impl_", "aten::index_put", "aten::_unsafe_index",
    "aten::_ctc_loss", "aten::_ctc_loss_backward", "aten::_pack_padded_sequence", "aten::_cudnn_rnn",
    "aten::_histogramdd_from_bin_tensors", "aten::histogram", "aten::_segment_reduce_backward",
};

class KernelCall {
 public:
  KernelCall(const c10::OperatorHandle& op, torch::jit::Stack* stack)
      : op_(op),
        schema_(op.schema()),
        stack_(stack),
        given_(stack->end() - static_cast<int64_t>(schema_.arguments().size()), stack->end()),
        device_(*devices[find_device()]) {
    for (const auto& result : schema_.returns())
      if (result.alias_info() != nullptr && !result.alias_info()->isWrite()) is_view_ = true;
    // A GPU's kernels wait inside, too, where the host must know a value or a shape.
    waits_ = op.hasTag(at::Tag::data_dependent_output) ||
             (op.hasTag(at::Tag::dynamic_output_shape) && !indexes_by_integers());
  }

  void run() {
    const c10::DeviceGuard guard(device_called(device_.index));
    if (waits_) synchronize(device_);
    if (recording != nullptr && !is_view_) {
      record();
    } else {
      compute_and_settle();
      if (about_values_) settle_by_shapes();
    }
    torch::jit::drop(*stack_, given_.size());
    for (c10::IValue& result : results_) stack_->push_back(std::move(result));
    if (waits_) synchronize(device_);
  }

 private:
  int find_device() const {
    int found = -1, named = -1;
    bool beside_host = false;
    for (const c10::IValue& value : given_) {
      if (value.isDevice() && value.toDevice().type() == TYPE) named = value.toDevice().index();
      for_each_tensor(value, [&](const at::Tensor& tensor) {
        if (!tensor.defined()) return;
        if (!is_ours(tensor)) {
          beside_host |= tensor.device().is_cpu() && tensor.dim() > 0;
          return;
        }
        const int index = tensor.device().index();
        TORCH_CHECK(found < 0 || found == index,
                    "Expected all tensors to be on the same device, but found at least two devices, standin:", found,
                    " and standin:", index, "! (", schema_.name(), ")");
        found = index;
      });
    }
    TORCH_CHECK(found < 0 || !beside_host || TAKES_HOST_TENSORS.count(schema_.name()) != 0,
                "Expected all tensors to be on the same device, but found at least two devices, standin:", found,
                " and cpu! (", schema_.name(), ")");
    if (found >= 0) return found;
    return named >= 0 ? named : current_device;
  }

  // Indexing is tagged for its masks, whose shape is in their values. Integers have the result's shape in theirs.
  bool indexes_by_integers() const {
    bool has_indices = false, has_mask = false;
    for (const c10::IValue& value : given_) {
      if (!value.isOptionalTensorList()) continue;
      for_each_tensor(value, [&](const at::Tensor& index) {
        if (!index.defined()) return;
        has_indices = true;
        has_mask |= index.scalar_type() == at::kBool || index.scalar_type() == at::kByte;
      });
    }
    return has_indices && !has_mask;
  }

  bool is_written(size_t argument) const {
    const auto* alias = schema_.arguments()[argument].alias_info();
    return alias != nullptr && alias->isWrite();
  }

  void compute_and_settle() {
    const Hold held;
    if (!is_view_) enter(device_);
    make_twins();
    compute();
    if (!about_values_) settle(twin_results_, "");
  }

  void make_twins() {
    draws_ = !settings.host_random && op_.hasTag(at::Tag::nondeterministic_seeded);
    for (const c10::IValue& value : given_) {
      if (value.isDevice()) {
        twins_.emplace_back(c10::Device(c10::kCPU));
      } else if (value.isGenerator() && value.toGenerator().defined() && value.toGenerator().device().type() == TYPE) {
        twins_.emplace_back(cpu_generator(value.toGenerator()));
        draws_ = false;
      } else {
        // A host's tensor is read now, whenever a recording computes.
        twins_.push_back(map_tensors(value, [this](const at::Tensor& tensor) {
          return recording == nullptr || !tensor.defined() || is_ours(tensor) ? mirror_.twin(tensor) : tensor.clone();
        }));
      }
    }
  }

  void compute() {
    // A launch has the bytes of what it was called with, no matter how the CPU's kernel computes it.
    const c10::impl::ExcludeDispatchKeyGuard no_casts(c10::autocast_dispatch_keyset);
    std::optional<DrawsFromDevice> drawing;
    if (draws_) drawing.emplace(device_.index);
    twin_results_ = twins_;
    try {
      op_.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &twin_results_);
    } catch (const c10::LinAlgError&) {
      throw;  // a GPU's solvers say so at once, too
    } catch (const c10::NotImplementedError&) {
      throw;
    } catch (const c10::Error& error) {
      value_error_ = error.what_without_backtrace();
      if (is_view_ || waits_ || !is_about_values(op_, value_error_)) throw;
      about_values_ = std::current_exception();
    }
  }

  // Nothing is computed: the results are by the shapes, and their memory is filled when the graph is started.
  void record() {
    {
      const Hold held;
      enter(device_);
      make_twins();
    }
    std::string why;
    const std::optional<torch::jit::Stack> computed = results_by_shapes(op_, twins_, why);
    TORCH_CHECK(computed.has_value(), "standin: ", schema_.name(), " is not recorded: ", why);
    const Hold held;
    fit_recorded(*computed);
    std::optional<Launch> none;
    for (size_t i = 0; i < schema_.returns().size(); ++i) {
      results_.push_back(result(i, (*computed)[i], none));
      if (schema_.returns()[i].alias_info() == nullptr) for_each_tensor(results_.back(), &poison);
    }
    RecordedLaunch recorded;
    note_accesses(recorded);
    recorded.compute = recorded_computation();
    recording->add(std::move(recorded));
  }

  // Gives an out= of another size the kernel's, as the kernel would.
  void fit_recorded(const torch::jit::Stack& computed) {
    for (size_t i = 0; i < schema_.returns().size(); ++i) {
      const auto* alias = schema_.returns()[i].alias_info();
      if (alias == nullptr || !alias->isWrite() || !computed[i].isTensor()) continue;
      const at::Tensor out = written_argument(*alias).toTensor();
      const at::Tensor& fitting = computed[i].toTensor();
      if (out.sizes() == fitting.sizes()) continue;
      at::native::resize_(out, fitting.sizes());
      out.unsafeGetTensorImpl()->set_sizes_and_strides(fitting.sizes(), fitting.strides());
    }
    mirror_ = Mirror();
    twins_.clear();
    make_twins();
  }

  std::function<std::string()> recorded_computation() const {
    torch::jit::Stack into;
    for (const c10::IValue& value : results_) into.push_back(map_tensors(value, without_owner));
    return [op = op_, given = twins_, into, index = device_.index, draws = draws_] {
      return computed_again(op, given, into, draws ? index : -1);
    };
  }

  static std::string computed_again(const c10::OperatorHandle& op, torch::jit::Stack stack,
                                    const torch::jit::Stack& into, int draws_from) {
    const c10::impl::ExcludeDispatchKeyGuard no_casts(c10::autocast_dispatch_keyset);
    std::optional<DrawsFromDevice> drawing;
    if (draws_from >= 0) drawing.emplace(draws_from);
    try {
      op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
    } catch (const c10::Error& error) {
      return "device-side assert triggered (" + op.schema().name() + ": " + error.what_without_backtrace() + ")";
    }
    for (size_t i = 0; i < into.size(); ++i) {
      const auto* alias = op.schema().returns()[i].alias_info();
      if (alias == nullptr || !alias->isWrite()) copy_all(stack[i], into[i]);
    }
    return "";
  }

  static void poison(const at::Tensor& made) {
    if (!is_ours(made) || made.storage().data() == nullptr) return;
    std::memset(bytes_of(made.storage().unsafeGetStorageImpl()), POISON, made.storage().nbytes());
  }

  static void copy_all(const c10::IValue& from, const c10::IValue& to) {
    std::vector<at::Tensor> read;
    for_each_tensor(from, [&](const at::Tensor& tensor) { read.push_back(tensor); });
    auto next = read.begin();
    for_each_tensor(to, [&](const at::Tensor& tensor) {
      if (tensor.defined()) tensor.copy_(*next);
      ++next;
    });
  }

  void note_accesses(RecordedLaunch& recorded) const {
    const auto note = [&](const at::Tensor& tensor, bool written) {
      if (!is_ours(tensor)) return;
      recorded.bytes += static_cast<int64_t>(tensor.nbytes());
      (written ? recorded.written : recorded.read).push_back(tensor.storage().data());
    };
    for (size_t i = 0; i < given_.size(); ++i)
      for_each_tensor(given_[i], [&](const at::Tensor& tensor) { note(tensor, is_written(i)); });
    for (const c10::IValue& value : results_)
      for_each_tensor(value, [&](const at::Tensor& tensor) { note(tensor, true); });
  }

  void settle_by_shapes() {
    std::string why;
    std::optional<torch::jit::Stack> results = results_by_shapes(op_, twins_, why);
    if (!results.has_value()) std::rethrow_exception(about_values_);
    const Hold held;
    settle(*results, "device-side assert triggered (" + schema_.name() + ": " + value_error_ + ")");
  }

  // Makes the device's results of the twins', and the launch of what was computed.
  void settle(const torch::jit::Stack& computed, std::string failure) {
    std::optional<Launch> launch;
    if (!is_view_) {
      launch.emplace(device_, schema_.name());
      declare_accesses(*launch);
      if (failure.empty()) take_over_resized(*launch);
    }
    for (size_t i = 0; i < schema_.returns().size(); ++i) results_.push_back(result(i, computed[i], launch));
    if (is_view_) {
      ++device_.counters.views;
      return;
    }
    ++device_.counters.launches;
    const double end_s = launch->ends_after(kernel_s(bytes_));
    const std::string injected = std::exchange(next_kernel.fault, "");
    if (failure.empty()) failure = injected;
    if (!failure.empty()) fail_at(end_s, failure);
  }

  void declare_accesses(Launch& launch) {
    for (size_t i = 0; i < given_.size(); ++i) {
      for_each_tensor(given_[i], [&](const at::Tensor& tensor) {
        if (!is_ours(tensor)) return;
        bytes_ += static_cast<int64_t>(tensor.nbytes());
        if (is_written(i)) launch.writes(tensor);
        else launch.reads(tensor);
      });
    }
  }

  // An out= that the kernel resized has its values in memory of the twin's own.
  void take_over_resized(Launch& launch) {
    for (size_t i = 0; i < given_.size(); ++i) {
      if (!is_written(i)) continue;
      std::vector<at::Tensor> twins;
      for_each_tensor(twins_[i], [&](const at::Tensor& twin) { twins.push_back(twin); });
      auto twin = twins.begin();
      for_each_tensor(given_[i], [&](const at::Tensor& out) { take_over_resized(launch, out, *twin++); });
    }
  }

  static void take_over_resized(Launch& launch, const at::Tensor& out, const at::Tensor& twin) {
    if (!is_ours(out) || out.sizes() == twin.sizes()) return;
    at::native::resize_(out, twin.sizes());
    if (twin.is_non_overlapping_and_dense()) {
      out.unsafeGetTensorImpl()->set_sizes_and_strides(twin.sizes(), twin.strides());
    }
    Mirror().twin(out).copy_(twin);
    launch.writes(out);
  }

  c10::IValue result(size_t index, const c10::IValue& computed, std::optional<Launch>& launch) {
    const auto* alias = schema_.returns()[index].alias_info();
    if (alias != nullptr && alias->isWrite()) return written_argument(*alias);
    return map_tensors(computed, [&](const at::Tensor& tensor) {
      if (!tensor.defined()) return tensor;
      if (at::Tensor view = mirror_.view_for(tensor); view.defined()) return view;
      at::Tensor fresh = to_device(tensor);
      if (!is_ours(fresh)) return fresh;
      bytes_ += static_cast<int64_t>(fresh.nbytes());
      if (launch.has_value()) launch->writes(fresh);
      return fresh;
    });
  }

  c10::IValue written_argument(const c10::AliasInfo& alias) const {
    for (size_t i = 0; i < given_.size(); ++i) {
      const auto* candidate = schema_.arguments()[i].alias_info();
      if (candidate != nullptr && candidate->isWrite() && candidate->afterSets() == alias.afterSets()) return given_[i];
    }
    TORCH_CHECK(false, "standin: no argument for a result of ", schema_.name());
  }

  const c10::OperatorHandle& op_;
  const c10::FunctionSchema& schema_;
  torch::jit::Stack* stack_;
  std::vector<c10::IValue> given_, twins_, results_;
  Device& device_;
  bool is_view_ = false, waits_ = false, draws_ = false;
  Mirror mirror_;
  torch::jit::Stack twin_results_;
  std::string value_error_;
  std::exception_ptr about_values_;
  int64_t bytes_ = 0;
};

inline void run_kernel(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  KernelCall(op, stack).run();
}

}  // namespace standin
