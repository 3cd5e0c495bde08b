// One run of a plan: the loop over its nodes.
#pragma once

#include <ATen/MemoryOverlap.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <array>
#include <chrono>
#include <exception>
#include <optional>

#include "values.h"
#include "window.h"

namespace djinn {

// Why the loop came back. `python`: the next node is Python's to run; `memory`: the next node's bytes do not fit;
// `mismatch`: what the next node returned is not what capture predicted.
enum class Status { done, stopped, python, memory, mismatch };

constexpr double REPORT_INTERVAL_S = 0.05;

class Run {
 public:
  // `bridge`: djinn_lab.worker.bridge.Bridge. `stop`: a bytearray whose first byte becomes non-zero when the run is
  // to stop; None: the bridge is asked before every node, and notified after it.
  Run(const std::shared_ptr<Plan>& plan, const std::shared_ptr<Account>& account, py::object bridge,
      const std::shared_ptr<Records>& records, py::dict tensors, py::dict storage_of, int64_t executed,
      double origin_s, py::object stop, c10::Device device)
      : plan_(plan),
        account_(account),
        bridge_(bridge),
        values_(plan, account, records, std::move(bridge), std::move(tensors), std::move(storage_of)),
        executed_(executed),
        begins_at_(executed),
        origin_s_(origin_s),
        stop_(std::move(stop)),
        device_(device),
        by_python_(plan->nodes.size(), false),
        numbers_(plan->number_count) {
    if (records->size() != plan->nodes.size()) throw py::value_error("the plan is for another number of nodes");
    if (!stop_.is_none()) stop_byte_ = PyByteArray_AS_STRING(stop_.ptr());
    for (size_t index = executed_; index < plan->nodes.size(); ++index) {
      const PlannedNode& node = plan->nodes[index];
      if (node.op == nullptr || node.op->numbers.empty()) continue;
      by_python_[index] = !records->numbers(index, *node.op, numbers_.data() + node.first_number);
    }
    for (size_t slot = 0; slot < plan->origins.size(); ++slot) {
      const Origin& origin = plan->origins[slot];
      if (origin.node < executed && origin.last_node >= executed) values_.bind(static_cast<int32_t>(slot));
    }
    times_.reserve(2 * (plan->nodes.size() - executed_));
    if (!device.is_cpu())
      window_.emplace(device, executed, stop_byte_ == nullptr,
                      [this](int64_t begin, int64_t end) { share_time(begin - begins_at_, end - begins_at_); });
    reported_s_ = clock_s();
  }

  // On an accelerator the nodes that were asked for have ended when this comes back, unless it is for Python.
  Status advance() {
    const py::gil_scoped_release released;
    Status status = Status::python;
    try {
      status = launch();
    } catch (...) {
      if (window_) window_->settle();  // what the device says of the nodes before is what went wrong
      throw;
    }
    if (window_ && status != Status::python) window_->settle();
    return status;
  }

  // Wait for what is under way. Raises the device's fault.
  void settle() {
    if (!window_) return;
    const py::gil_scoped_release released;
    window_->settle();
  }

  // Python has run the next node; its results are the session's.
  void ran(double start_s, double end_s) {
    const PlannedNode& node = plan_->nodes.at(executed_);
    bind_unbound(node.inputs);
    bind_unbound(node.outputs);
    for (const int32_t slot : slots_in(node.frees)) values_.free(slot);
    const py::gil_scoped_release released;
    ended(true, start_s, end_s);
  }

  // Everything that is here becomes the session's; the run is over.
  void flush() {
    results_.clear();
    stack_.clear();
    values_.flush();
    if (layouts_changed_) bridge_.attr("layouts_changed")();
  }

  int64_t live_bytes() const { return values_.live_bytes(); }
  // How many nodes have ended; `launched`: how many were asked for.
  int64_t executed() const { return window_ ? window_->retired() : executed_; }
  int64_t launched() const { return executed_; }
  bool in_op() const { return in_op_ || (window_ && window_->faulted()); }
  // Packed, as djinn_lab.protocol.worker.pack_times does.
  py::bytes times() const { return {reinterpret_cast<const char*>(times_.data()), times_.size() * sizeof(double)}; }
  py::tuple mismatch() const { return py::make_tuple(mismatch_meta_, mismatched_); }

 private:
  Status launch() {
    // No result needs a gradient or a version: what is above the backend's kernels in dispatch is left out.
    const c10::impl::ExcludeDispatchKeyGuard below_autograd(c10::autograd_dispatch_keyset_with_ADInplaceOrView);
    const auto total = static_cast<int64_t>(plan_->nodes.size());
    double now_s = clock_s();
    while (executed_ < total) {
      if (asked_to_stop()) return Status::stopped;
      const PlannedNode& node = plan_->nodes[executed_];
      if (node.op == nullptr || by_python_[executed_] || !(inputs_are_there(node) || inputs_have_come(node))) {
        const py::gil_scoped_acquire held;
        values_.hand_over_all_on(slots_in(node.inputs));
        return Status::python;
      }
      if (node.op->attends && !attention_fits(node)) {
        const py::gil_scoped_acquire held;
        values_.hand_over_all_on(slots_in(node.inputs));
        return Status::python;  // where the guard says what is wrong
      }
      if (node.reserve_bytes != 0 && account_->reserve(node.reserve_bytes) >= 0) return Status::memory;
      in_op_ = true;
      const double start_s = now_s - origin_s_;
      execute(node);
      if (!store(node)) return Status::mismatch;
      results_.clear();
      if (node.op->appends) append(node);
      for (int32_t at = node.frees.begin; at < node.frees.end; ++at) values_.free(plan_->places[at]);
      in_op_ = false;
      now_s = clock_s();
      ended(launches(node), start_s, now_s - origin_s_);
      if (window_) now_s = clock_s();
      if (stop_byte_ == nullptr || now_s - reported_s_ > REPORT_INTERVAL_S) report(now_s);
    }
    return Status::done;
  }

  static double clock_s() {  // that of time.perf_counter
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }

  void ended(bool launches, double start_s, double end_s) {
    ++executed_;
    add_times(start_s, end_s);
    if (window_) window_->add(launches, clock_s());
  }

  static bool launches(const PlannedNode& node) {
    const auto& fresh = node.op->fresh;
    return !node.writes.empty() || std::find(fresh.begin(), fresh.end(), true) != fresh.end();
  }

  // The device does not say when each node of a group began: all that launch have equal parts of the time from the end
  // of those before to the end of the group.
  void share_time(int64_t begin, int64_t end) {
    const double now_s = clock_s() - origin_s_;
    const double from_s = begin > 0 ? std::max(times_[2 * begin - 1], times_[2 * begin]) : times_[2 * begin];
    int64_t count = 0;
    for (int64_t place = begin; place < end; ++place) count += is_launch(place);
    double at_s = from_s;
    const double part_s = std::max(0.0, now_s - from_s) / static_cast<double>(std::max<int64_t>(1, count));
    for (int64_t place = begin; place < end; ++place) {
      times_[2 * place] = at_s;
      if (is_launch(place)) at_s += part_s;
      times_[2 * place + 1] = at_s;
    }
  }

  bool is_launch(int64_t place) const {
    const PlannedNode& node = plan_->nodes[begins_at_ + place];
    return node.op == nullptr || launches(node);
  }

  void add_times(double start_s, double end_s) {
    times_.push_back(start_s);
    times_.push_back(end_s);
  }

  std::vector<int32_t> slots_in(Span span) const {
    return {plan_->places.begin() + span.begin, plan_->places.begin() + span.end};
  }

  bool asked_to_stop() {
    if (stop_byte_ != nullptr) return *static_cast<const volatile char*>(stop_byte_) != 0;
    const py::gil_scoped_acquire held;
    return py::cast<bool>(bridge_.attr("should_stop")());
  }

  bool inputs_are_there(const PlannedNode& node) const {
    for (int32_t at = node.inputs.begin; at < node.inputs.end; ++at)
      if (values_[plan_->places[at]].owner == Owner::none) return false;
    return true;
  }

  // Since they were last looked for: a session may be restored while its program runs.
  bool inputs_have_come(const PlannedNode& node) {
    const py::gil_scoped_acquire held;
    bind_unbound(node.inputs);
    return inputs_are_there(node);
  }

  void bind_unbound(Span span) {
    for (const int32_t slot : slots_in(span))
      if (values_[slot].owner == Owner::none) values_.bind(slot);
  }

  void report(double now_s) {
    const py::gil_scoped_acquire held;
    reported_s_ = now_s;
    bridge_.attr("report")(executed(), plan_->nodes.size());
  }

  // --- one node

  void execute(const PlannedNode& node) {
    try {
      if (!node.writes.empty()) begin_write(node);
      try {
        call(node);
      } catch (...) {
        if (!node.writes.empty()) end_write(node);
        throw;
      }
      if (!node.writes.empty()) end_write(node);
    } catch (...) {
      account_->release(node.reserve_bytes);
      throw;
    }
  }

  // As djinn_lab.worker.guards has it for every op; here for the one that each token of a language model calls.
  bool attention_fits(const PlannedNode& node) const {
    const int32_t* inputs = plan_->places.data() + node.inputs.begin;
    const at::Tensor& query = values_[inputs[0]].tensor;
    const at::Tensor& key = values_[inputs[1]].tensor;
    const at::Tensor& value = values_[inputs[2]].tensor;
    for (const at::Tensor* one : {&query, &key, &value}) {
      if (!one->defined() || one->dim() != 4 || one->scalar_type() != query.scalar_type()) return false;
      if (one->stride(3) != 1 && query.size(3) != 1) return false;
    }
    if (!query.is_floating_point() || query.numel() == 0 || key.size(1) == 0 || key.size(2) == 0) return false;
    if (query.size(1) % key.size(1) != 0) return false;  // query heads in groups share a head of keys
    const std::array<int64_t, 4> expected{query.size(0), key.size(1), key.size(2), query.size(3)};
    if (key.sizes() != c10::IntArrayRef(expected) || value.sizes() != key.sizes()) return false;
    if (node.op->tensor_count == 3) return true;
    const at::Tensor& mask = values_[inputs[3]].tensor;
    if (!mask.defined() || (mask.dim() != 2 && mask.dim() != 4)) return false;
    const auto kind = mask.scalar_type();
    if (kind != query.scalar_type() && kind != at::kFloat && kind != at::kBool) return false;
    const std::array<int64_t, 4> scores{query.size(0), query.size(1), query.size(2), key.size(2)};
    for (int64_t back = 1; back <= mask.dim(); ++back)
      if (mask.size(-back) != 1 && mask.size(-back) != scores.at(4 - back)) return false;
    return true;
  }

  void call(const PlannedNode& node) {
    const int32_t* inputs = plan_->places.data() + node.inputs.begin;
    const IValue* numbers = numbers_.data() + node.first_number;
    if (node.reads_what_it_writes) {
      std::vector<at::Tensor> apart;
      for (int32_t place = 0; place < node.op->tensor_count; ++place)
        apart.push_back(apart_from_written(node, values_[inputs[place]].tensor, place));
      node.op->call(stack_, [&](int32_t place) -> const at::Tensor& { return apart[place]; }, numbers);
    } else {
      node.op->call(stack_, [&](int32_t place) -> const at::Tensor& { return values_[inputs[place]].tensor; }, numbers);
    }
    node.op->results(stack_, results_);
    if (node.op->zeroed && node.op->fresh.at(0)) {
      zero_memory(results_.at(0));
    } else if (node.op->zeroed) {
      results_.at(0).zero_();
    }
  }

  // Of a new tensor all memory: what lay there may have been another user's, and a view can look between the elements.
  static void zero_memory(const at::Tensor& tensor) {
    at::empty({0}, tensor.options().dtype(at::kByte)).set_(tensor.storage()).zero_();
  }

  // Two tensors that lie alike are one value here. Where torch would let both be given, the one that is read is another
  // tensor than the one that is written; capture has refused what eager refuses.
  static at::Tensor apart_from_written(const PlannedNode& node, const at::Tensor& tensor, int32_t place) {
    const auto& writes = node.op->writes;
    if (!tensor.defined() || std::find(writes.begin(), writes.end(), place) != writes.end()) return tensor;
    const bool open = tensor.numel() == 0 || at::has_internal_overlap(tensor) == at::MemOverlap::TooHard;
    return open ? tensor.alias() : tensor;
  }

  // Keeps the results; false when one is not what capture predicted.
  bool store(const PlannedNode& node) {
    int64_t added = 0;
    bool as_predicted = true;
    try {
      for (int32_t at = node.made.begin; at < node.made.end && as_predicted; ++at) {
        const Made& made = plan_->made[at];
        if (made.place >= static_cast<int32_t>(results_.size())) break;
        at::Tensor& tensor = results_[made.place];
        as_predicted = !tensor.defined() || made.own || make_expected(tensor, made);
        if (as_predicted) added += values_.keep(node, made.slot, std::move(tensor));
      }
    } catch (...) {
      account_->settle(node.reserve_bytes, added);
      throw;
    }
    if (node.reserve_bytes != 0 || added != 0) account_->settle(node.reserve_bytes, added);
    return as_predicted;
  }

  // As djinn_lab.worker.preparation.Expected.check.
  bool make_expected(at::Tensor& tensor, const Made& made) {
    const Meta& meta = plan_->metas[made.meta];
    if (tensor.sizes() != c10::IntArrayRef(meta.shape) || tensor.scalar_type() != meta.dtype) {
      mismatch_meta_ = made.meta;
      mismatched_ = tensor;
      return false;
    }
    if (!made.fresh) return true;
    if (tensor.storage_offset() == 0 && tensor.strides() == c10::IntArrayRef(meta.stride)) return true;
    at::Tensor expected = at::empty_strided(meta.shape, meta.stride, tensor.options());
    zero_memory(expected);
    tensor = expected.copy_(tensor);
    return true;
  }

  // A key-value cache may have grown: the session knows, where it looks like one.
  void append(const PlannedNode& node) {
    if (node.made.empty()) return;
    const int32_t past = plan_->places[node.inputs.begin], grown = plan_->made[node.made.begin].slot;
    const at::Tensor& tensor = values_[grown].tensor;
    if (!tensor.defined() || tensor.dim() != 4 || tensor.numel() == 0 || values_[grown].memory < 0) return;
    if (values_.memory(grown).nbytes != static_cast<int64_t>(tensor.nbytes()) || !tensor.is_contiguous()) return;
    const py::gil_scoped_acquire held;
    values_.hand_over_all_on({past, grown});
    bridge_.attr("grow")(values_.identifier(past), values_.identifier(grown));
  }

  // --- writes, as in SessionValues.begin_write and end_write

  void begin_write(const PlannedNode& node) {
    for (int32_t at = node.writes.begin; at < node.writes.end; ++at) {
      const Marks* marks = values_.marks_of(plan_->places[at]);
      if (marks == nullptr || !marks->tracked.load()) continue;
      begin_tracked_write(node);
      return;
    }
    for (int32_t at = node.writes.begin; at < node.writes.end; ++at) {
      Marks* marks = values_.marks_of(plan_->places[at]);
      if (marks == nullptr) continue;
      marks->writing.store(true);
      marks->version.fetch_add(1);
      if (!marks->tracked.load()) continue;
      const py::gil_scoped_acquire held;  // a copy has come to look just now
      bridge_.attr("announce")(values_.memory(plan_->places[at]).storage);
    }
  }

  void begin_tracked_write(const PlannedNode& node) {
    const py::gil_scoped_acquire held;
    const std::vector<int32_t> slots = slots_in(node.writes);
    values_.hand_over_all_on(slots);
    py::list identifiers;
    for (const int32_t slot : slots) identifiers.append(values_.identifier(slot));
    tracked_write_ = bridge_.attr("begin_write")(identifiers);
    for (const int32_t slot : slots) values_.look_again(slot);
  }

  void end_write(const PlannedNode& node) {
    if (node.op->resizes) layouts_changed_ = true;
    if (tracked_write_) {
      const py::gil_scoped_acquire held;
      const py::object written = std::move(tracked_write_);
      bridge_.attr("end_write")(written, node.op->resizes);
    } else {
      end_untracked_write(node);
    }
    if (!node.op->resizes) return;
    for (int32_t at = node.writes.begin; at < node.writes.end; ++at) {
      if (!values_.recount(plan_->places[at])) continue;
      const py::gil_scoped_acquire held;
      bridge_.attr("resized")(values_.memory(plan_->places[at]).storage);
    }
  }

  void end_untracked_write(const PlannedNode& node) {
    for (int32_t at = node.writes.begin; at < node.writes.end; ++at) {
      Marks* marks = values_.marks_of(plan_->places[at]);
      if (marks == nullptr) continue;
      marks->writing.store(false);
      if (!marks->tracked.load()) continue;
      const py::gil_scoped_acquire held;
      bridge_.attr("end_tracked")(values_.memory(plan_->places[at]).storage);
    }
  }

  const std::shared_ptr<Plan> plan_;
  const std::shared_ptr<Account> account_;
  const py::object bridge_;
  Values values_;
  int64_t executed_;
  const int64_t begins_at_;
  const double origin_s_;
  const py::object stop_;
  const c10::Device device_;
  const char* stop_byte_ = nullptr;
  std::vector<bool> by_python_;
  std::vector<IValue> numbers_;
  std::vector<double> times_;
  torch::jit::Stack stack_;
  std::vector<at::Tensor> results_;
  py::object tracked_write_;
  double reported_s_ = 0;
  std::optional<Window> window_;
  bool in_op_ = false, layouts_changed_ = false;
  int32_t mismatch_meta_ = -1;
  at::Tensor mismatched_;
};

}  // namespace djinn
