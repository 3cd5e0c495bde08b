// One run of a plan: the loop over its nodes, and the values that only it has seen.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/utils/pybind.h>

#include <atomic>
#include <chrono>
#include <exception>

#include "account.h"
#include "plan.h"
#include "records.h"

namespace djinn {

// Why the loop came back. `python`: the next node is Python's to run; `memory`: the next node's bytes do not fit;
// `mismatch`: what the next node returned is not what capture predicted.
enum class Status { done, stopped, python, memory, mismatch };

// A slot's value is `here` (alone), or it is one of the session's (`session`), which Python counts and looks at.
enum class Owner : uint8_t { none, here, session };

struct Slot {
  at::Tensor tensor;
  int32_t memory = -1;
  Owner owner = Owner::none;
};

// A torch storage and how many slots lie on it, by owner. With `marks` the session counts its bytes.
struct Memory {
  int64_t nbytes = 0;
  int32_t here = 0, session = 0;
  Marks* marks = nullptr;
  py::object storage;
  std::vector<int32_t> waiting;  // the session's slots that go when the last slot that is here has gone
};

constexpr double REPORT_INTERVAL_S = 0.05;

class Run {
 public:
  // `bridge`: djinn_lab.worker.native_run.Bridge. `stop`: its first byte becomes non-zero when the run is to stop;
  // None: the bridge is asked, and told, after every node.
  Run(std::shared_ptr<Plan> plan, std::shared_ptr<Account> account, py::object bridge,
      std::shared_ptr<Records> records, const py::object& sources, py::dict tensors, py::dict storage_of, int64_t executed, double origin_s,
      py::object stop)
      : plan_(std::move(plan)),
        account_(std::move(account)),
        bridge_(std::move(bridge)),
        records_(std::move(records)),
        sources_(fast(sources)),
        tensors_(std::move(tensors)),
        storage_of_(std::move(storage_of)),
        executed_(executed),
        origin_s_(origin_s),
        stop_(std::move(stop)),
        slots_(plan_->origins.size()),
        by_python_(plan_->nodes.size(), false),
        numbers_(plan_->number_count) {
    if (records_->size() != plan_->nodes.size())
      throw py::value_error("the plan is for another number of nodes");
    if (!stop_.is_none()) stop_byte_ = reinterpret_cast<const char*>(PyByteArray_AS_STRING(stop_.ptr()));
    read_numbers();
    for (size_t slot = 0; slot < slots_.size(); ++slot) {
      const Origin& origin = plan_->origins[slot];
      if (origin.node < executed && origin.last_node >= executed) bind(static_cast<int32_t>(slot));
    }
    now_s_ = reported_s_ = clock_s();
  }

  Status advance() {
    const py::gil_scoped_release released;
    // No result needs a gradient or a version: what is above the backend's kernels in dispatch is left out.
    const c10::impl::ExcludeDispatchKeyGuard below_autograd(c10::autograd_dispatch_keyset_with_ADInplaceOrView);
    const auto total = static_cast<int64_t>(plan_->nodes.size());
    now_s_ = clock_s();
    while (executed_ < total) {
      if (asked_to_stop()) return Status::stopped;
      const PlannedNode& node = plan_->nodes[executed_];
      if (node.op == nullptr || by_python_[executed_] || !inputs_are_here(node)) {
        hand_to_session(node);
        return Status::python;
      }
      starts_.push_back(now_s_ - origin_s_);
      in_op_ = true;
      if (node.reserve_bytes != 0 && account_->reserve(node.reserve_bytes) >= 0) return Status::memory;
      execute(node);
      if (!store(node)) return Status::mismatch;
      results_.clear();
      if (node.op->appends) append(node);
      free(node);
      ++executed_;
      in_op_ = false;
      now_s_ = clock_s();
      ends_.push_back(now_s_ - origin_s_);
      if (stop_byte_ == nullptr || now_s_ - reported_s_ > REPORT_INTERVAL_S) report(total);
    }
    return Status::done;
  }

  // Python has run the next node; its results are the session's.
  void ran(double start_s, double end_s) {
    const PlannedNode& node = plan_->nodes.at(executed_);
    for (int32_t at = node.outputs.begin; at < node.outputs.end; ++at) {
      const int32_t slot = plan_->places[at];
      if (slots_[slot].owner == Owner::none) bind(slot);
    }
    free(node);
    ++executed_;
    starts_.push_back(start_s);
    ends_.push_back(end_s);
  }

  // Everything that is here becomes the session's.
  void flush() {
    std::vector<int32_t> all;
    for (size_t slot = 0; slot < slots_.size(); ++slot)
      if (slots_[slot].owner == Owner::here) all.push_back(static_cast<int32_t>(slot));
    hand_over(all);
    if (layouts_changed_) bridge_.attr("layouts_changed")();
    slots_.clear();
    memories_.clear();
    results_.clear();
    stack_.clear();
  }

  int64_t live_bytes() const { return live_bytes_.load(std::memory_order_relaxed); }
  int64_t executed() const { return executed_; }
  bool in_op() const { return in_op_; }
  const std::vector<double>& starts() const { return starts_; }
  const std::vector<double>& ends() const { return ends_; }
  py::tuple mismatch() const { return py::make_tuple(mismatch_meta_, mismatched_); }

 private:
  static py::object fast(const py::object& sequence) {
    PyObject* found = PySequence_Fast(sequence.ptr(), "expected a sequence");
    if (found == nullptr) throw py::error_already_set();
    return py::reinterpret_steal<py::object>(found);
  }

  static double clock_s() {  // that of time.perf_counter
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }

  // --- what the program says, with the GIL

  py::object identifier(int32_t slot) const {
    static PyObject* const value_name = PyUnicode_InternFromString("value");
    const Origin& origin = plan_->origins[slot];
    if (origin.node >= 0) return records_->output(origin.node, origin.place);
    if (origin.place >= PySequence_Fast_GET_SIZE(sources_.ptr())) throw py::index_error("no such source");
    PyObject* found = PyObject_GetAttr(PySequence_Fast_GET_ITEM(sources_.ptr(), origin.place), value_name);
    if (found == nullptr) throw py::error_already_set();
    return py::reinterpret_steal<py::object>(found);
  }

  void read_numbers() {
    for (size_t index = executed_; index < plan_->nodes.size(); ++index) {
      const PlannedNode& node = plan_->nodes[index];
      if (node.op == nullptr || node.op->numbers.empty()) continue;
      by_python_[index] = !records_->numbers(index, *node.op, numbers_.data() + node.first_number);
    }
  }

  void bind(int32_t slot) {
    const py::object key = identifier(slot);
    PyObject* found = PyDict_GetItem(tensors_.ptr(), key.ptr());
    if (found == nullptr) return;
    Slot& one = slots_[slot];
    one.owner = Owner::session;
    if (found == Py_None) return;
    one.tensor = THPVariable_Unpack(found);
    PyObject* storage = PyDict_GetItem(storage_of_.ptr(), key.ptr());
    if (storage == nullptr) return;
    auto* marks = py::cast<Marks*>(py::handle(storage));
    if (marks->run != number_) {
      one.memory = new_memory(one.tensor);
      claim(one.memory, marks, storage);
    }
    one.memory = marks->entry;
    ++memories_[one.memory].session;
  }

  void claim(int32_t memory, Marks* marks, PyObject* storage) {
    memories_[memory].marks = marks;
    memories_[memory].storage = py::reinterpret_borrow<py::object>(storage);
    marks->entry = memory;
    marks->run = number_;
  }

  // --- one node

  bool asked_to_stop() {
    if (stop_byte_ != nullptr) return *static_cast<const volatile char*>(stop_byte_) != 0;
    const py::gil_scoped_acquire held;
    return py::cast<bool>(bridge_.attr("should_stop")());
  }

  bool inputs_are_here(const PlannedNode& node) const {
    for (int32_t at = node.inputs.begin; at < node.inputs.end; ++at)
      if (slots_[plan_->places[at]].owner == Owner::none) return false;
    return true;
  }

  void execute(const PlannedNode& node) {
    try {
      if (!node.writes.empty()) begin_write(node);
      const int32_t* inputs = plan_->places.data() + node.inputs.begin;
      try {
        node.op->call(
            stack_, [&](int32_t place) -> const at::Tensor& { return slots_[inputs[place]].tensor; },
            numbers_.data() + node.first_number);
        node.op->results(stack_, results_);
        if (node.op->zeroed) results_.at(0).zero_();
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

  bool store(const PlannedNode& node) {
    int64_t added = 0;
    bool as_predicted = true;
    try {
      for (int32_t at = node.made.begin; at < node.made.end && as_predicted; ++at) {
        const Made& made = plan_->made[at];
        if (made.place >= static_cast<int32_t>(results_.size())) break;
        as_predicted = keep(node, made, std::move(results_[made.place]), added);
      }
    } catch (...) {
      account_->settle(node.reserve_bytes, added);
      throw;
    }
    if (node.reserve_bytes != 0 || added != 0) account_->settle(node.reserve_bytes, added);
    return as_predicted;
  }

  bool keep(const PlannedNode& node, const Made& made, at::Tensor tensor, int64_t& added) {
    Slot& slot = slots_[made.slot];
    if (!tensor.defined()) {  // some CPU kernels return no workspace where their shape rule says one
      slot.owner = Owner::here;
      return true;
    }
    const Meta& meta = plan_->metas[made.meta];
    if (tensor.sizes() != c10::IntArrayRef(meta.shape) || tensor.scalar_type() != meta.dtype) {
      mismatch_meta_ = made.meta;
      mismatched_ = std::move(tensor);
      return false;
    }
    if (made.fresh && (tensor.storage_offset() != 0 || tensor.strides() != c10::IntArrayRef(meta.stride)))
      tensor = relaid(tensor, meta);
    slot.tensor = std::move(tensor);
    slot.owner = Owner::here;
    if (slot.tensor._is_zerotensor()) return true;  // forward-mode zeros take no memory
    slot.memory = memory_of(node, made);
    if (slot.memory < 0) {
      slot.memory = new_memory(slot.tensor);
      const int64_t nbytes = memories_[slot.memory].nbytes;
      added += nbytes;
      live_bytes_.store(live_bytes_.load(std::memory_order_relaxed) + nbytes, std::memory_order_relaxed);
    }
    ++memories_[slot.memory].here;
    return true;
  }

  static at::Tensor relaid(const at::Tensor& tensor, const Meta& meta) {
    at::Tensor made = at::empty_strided(meta.shape, meta.stride, tensor.options());
    at::empty({0}, tensor.options().dtype(at::kByte)).set_(made.storage()).zero_();  // the gaps, too
    return made.copy_(tensor);
  }

  static c10::StorageImpl* storage_of(const at::Tensor& tensor) {
    return tensor.storage().unsafeGetStorageImpl();
  }

  // Where a result lies that is no memory of its own; -1 when it is.
  int32_t memory_of(const PlannedNode& node, const Made& made) const {
    const at::Tensor& tensor = slots_[made.slot].tensor;
    if (tensor.storage().use_count() == 1) return -1;
    for (int32_t at = node.touched.begin; at < node.touched.end; ++at)
      if (shares(plan_->places[at], made.slot)) return slots_[plan_->places[at]].memory;
    for (size_t slot = 0; slot < slots_.size(); ++slot)
      if (shares(static_cast<int32_t>(slot), made.slot)) return slots_[slot].memory;
    return -1;
  }

  bool shares(int32_t slot, int32_t with) const {
    return slot != with && slots_[slot].memory >= 0 && slots_[slot].tensor.defined() &&
           storage_of(slots_[slot].tensor) == storage_of(slots_[with].tensor);
  }

  int32_t new_memory(const at::Tensor& tensor) {
    int32_t found;
    if (unused_.empty()) {
      found = static_cast<int32_t>(memories_.size());
      memories_.emplace_back();
    } else {
      found = unused_.back();
      unused_.pop_back();
    }
    memories_[found].nbytes = static_cast<int64_t>(storage_of(tensor)->nbytes());
    return found;
  }

  // A key-value cache may have grown: the session knows, where it looks like one.
  void append(const PlannedNode& node) {
    const int32_t past = plan_->places[node.inputs.begin];
    if (node.made.empty()) return;
    const int32_t grown = plan_->made[node.made.begin].slot;
    const at::Tensor& tensor = slots_[grown].tensor;
    if (!tensor.defined() || tensor.dim() != 4 || tensor.numel() == 0 || slots_[grown].memory < 0) return;
    if (memories_[slots_[grown].memory].nbytes != static_cast<int64_t>(tensor.nbytes()) || !tensor.is_contiguous()) return;
    const py::gil_scoped_acquire held;
    hand_over_all_on({past, grown});
    bridge_.attr("grow")(identifier(past), identifier(grown));
  }

  void report(int64_t total) {
    const py::gil_scoped_acquire held;
    reported_s_ = now_s_;
    bridge_.attr("report")(executed_, total);
  }

  // --- writes, as in SessionValues.begin_write and end_write

  void begin_write(const PlannedNode& node) {
    for (int32_t at = node.writes.begin; at < node.writes.end; ++at) {
      const Marks* marks = marks_of(plan_->places[at]);
      if (marks == nullptr || !marks->tracked.load()) continue;
      begin_tracked_write(node);
      return;
    }
    for (int32_t at = node.writes.begin; at < node.writes.end; ++at) {
      Marks* marks = marks_of(plan_->places[at]);
      if (marks == nullptr) continue;
      marks->writing.store(true);
      marks->version.fetch_add(1);
      if (!marks->tracked.load()) continue;
      const py::gil_scoped_acquire held;  // a copy has come to look just now
      bridge_.attr("announce")(memories_[slots_[plan_->places[at]].memory].storage);
    }
  }

  void begin_tracked_write(const PlannedNode& node) {
    const py::gil_scoped_acquire held;
    std::vector<int32_t> slots(plan_->places.begin() + node.writes.begin, plan_->places.begin() + node.writes.end);
    hand_over_all_on(slots);
    py::list identifiers;
    for (const int32_t slot : slots) identifiers.append(identifier(slot));
    tracked_write_ = bridge_.attr("begin_write")(identifiers);
    for (const int32_t slot : slots) {  // the session may have made itself a copy of a shared weight
      if (slots_[slot].memory < 0) continue;
      PyObject* storage = PyDict_GetItem(storage_of_.ptr(), identifier(slot).ptr());
      if (storage != nullptr && storage != memories_[slots_[slot].memory].storage.ptr())
        claim(slots_[slot].memory, py::cast<Marks*>(py::handle(storage)), storage);
    }
  }

  void end_write(const PlannedNode& node) {
    if (node.op->resizes) layouts_changed_ = true;
    if (tracked_write_) {
      const py::gil_scoped_acquire held;
      const py::object written = std::move(tracked_write_);
      bridge_.attr("end_write")(written, node.op->resizes);
    } else {
      for (int32_t at = node.writes.begin; at < node.writes.end; ++at) {
        Marks* marks = marks_of(plan_->places[at]);
        if (marks == nullptr) continue;
        marks->writing.store(false);
        if (!marks->tracked.load()) continue;
        const py::gil_scoped_acquire held;
        bridge_.attr("end_tracked")(memories_[slots_[plan_->places[at]].memory].storage);
      }
    }
    if (node.op->resizes) recount(node);
  }

  // After an op that may have changed the size of what it wrote.
  void recount(const PlannedNode& node) {
    for (int32_t at = node.writes.begin; at < node.writes.end; ++at) {
      const Slot& slot = slots_[plan_->places[at]];
      if (slot.memory < 0) continue;
      Memory& memory = memories_[slot.memory];
      const int64_t grown = static_cast<int64_t>(storage_of(slot.tensor)->nbytes()) - memory.nbytes;
      if (grown == 0) continue;
      memory.nbytes += grown;
      if (memory.marks != nullptr) {
        const py::gil_scoped_acquire held;
        bridge_.attr("resized")(memory.storage);
      } else {
        live_bytes_.fetch_add(grown);
        account_->add(grown);
      }
    }
  }

  Marks* marks_of(int32_t slot) const {
    const int32_t memory = slots_[slot].memory;
    return memory < 0 ? nullptr : memories_[memory].marks;
  }

  // --- the ends of values

  void free(const PlannedNode& node) {
    for (int32_t at = node.frees.begin; at < node.frees.end; ++at) {
      const int32_t slot = plan_->places[at];
      if (slots_[slot].owner == Owner::here) free_here(slot);
      else if (slots_[slot].owner == Owner::session) free_of_session(slot);
    }
  }

  void free_here(int32_t slot) {
    Slot& one = slots_[slot];
    const int32_t memory = one.memory;
    one = Slot();
    if (memory < 0 || --memories_[memory].here != 0) return;
    if (memories_[memory].marks == nullptr) {
      end_counting(memory);
      unused_.push_back(memory);
      return;
    }
    if (memories_[memory].waiting.empty()) return;
    const py::gil_scoped_acquire held;
    drop_waiting(memory);
  }

  void end_counting(int32_t memory) {
    const int64_t nbytes = memories_[memory].nbytes;
    live_bytes_.store(live_bytes_.load(std::memory_order_relaxed) - nbytes, std::memory_order_relaxed);
    account_->release(nbytes);
  }

  void free_of_session(int32_t slot) {
    const py::gil_scoped_acquire held;
    const int32_t memory = slots_[slot].memory;
    if (memory < 0) {
      slots_[slot] = Slot();
      bridge_.attr("drop")(identifier(slot));
      return;
    }
    memories_[memory].waiting.push_back(slot);
    if (memories_[memory].here == 0) drop_waiting(memory);
  }

  // Views that only this run has seen keep their memory counted: nothing on it was dropped before them.
  void drop_waiting(int32_t memory) {
    std::vector<int32_t> slots = std::move(memories_[memory].waiting);
    memories_[memory].waiting.clear();
    for (const int32_t slot : slots) {
      slots_[slot] = Slot();
      bridge_.attr("drop")(identifier(slot));
    }
    memories_[memory].session -= static_cast<int32_t>(slots.size());
    if (memories_[memory].session != 0) return;
    memories_[memory].marks->run = 0;
    memories_[memory] = Memory();
    unused_.push_back(memory);
  }

  // --- to the session, with the GIL

  void hand_to_session(const PlannedNode& node) {
    const py::gil_scoped_acquire held;
    hand_over_all_on(std::vector<int32_t>(plan_->places.begin() + node.inputs.begin,
                                          plan_->places.begin() + node.inputs.end));
  }

  // These slots and all others on their memory.
  void hand_over_all_on(const std::vector<int32_t>& slots) {
    std::vector<int32_t> all;
    for (const int32_t slot : slots) {
      if (slots_[slot].owner == Owner::none) continue;
      const int32_t memory = slots_[slot].memory;
      if (memory < 0) {
        if (slots_[slot].owner == Owner::here) all.push_back(slot);
        continue;
      }
      if (memories_[memory].here == 0) continue;
      for (size_t other = 0; other < slots_.size(); ++other)
        if (slots_[other].owner == Owner::here && slots_[other].memory == memory)
          all.push_back(static_cast<int32_t>(other));
    }
    std::sort(all.begin(), all.end());
    all.erase(std::unique(all.begin(), all.end()), all.end());
    hand_over(all);
  }

  void hand_over(const std::vector<int32_t>& slots) {
    if (slots.empty()) return;
    py::list identifiers, tensors;
    for (const int32_t slot : slots) {
      identifiers.append(identifier(slot));
      tensors.append(py::reinterpret_steal<py::object>(THPVariable_Wrap(slots_[slot].tensor)));
    }
    bridge_.attr("place")(identifiers, tensors);
    for (size_t place = 0; place < slots.size(); ++place) {
      Slot& slot = slots_[slots[place]];
      slot.owner = Owner::session;
      if (slot.memory < 0) continue;
      Memory& memory = memories_[slot.memory];
      if (memory.marks == nullptr) {
        const py::object key = identifiers[place];
        PyObject* storage = PyDict_GetItem(storage_of_.ptr(), key.ptr());
        if (storage == nullptr) throw std::logic_error("a value without a storage");
        claim(slot.memory, py::cast<Marks*>(py::handle(storage)), storage);
        live_bytes_.fetch_sub(memory.nbytes);
      }
      --memory.here;
      ++memory.session;
      if (memory.here == 0 && !memory.waiting.empty()) drop_waiting(slot.memory);
    }
  }

  static inline std::atomic<uint64_t> last_number_{0};

  const uint64_t number_ = ++last_number_;
  const std::shared_ptr<Plan> plan_;
  const std::shared_ptr<Account> account_;
  const py::object bridge_;
  const std::shared_ptr<Records> records_;
  const py::object sources_;
  const py::dict tensors_, storage_of_;
  int64_t executed_;
  const double origin_s_;
  const py::object stop_;
  const char* stop_byte_ = nullptr;
  std::vector<Slot> slots_;
  std::vector<Memory> memories_;
  std::vector<int32_t> unused_;
  std::vector<bool> by_python_;
  std::vector<IValue> numbers_;
  std::vector<double> starts_, ends_;
  torch::jit::Stack stack_;
  std::vector<at::Tensor> results_;
  py::object tracked_write_;
  std::atomic<int64_t> live_bytes_{0};
  double now_s_ = 0, reported_s_ = 0;
  bool in_op_ = false, layouts_changed_ = false;
  int32_t mismatch_meta_ = -1;
  at::Tensor mismatched_;
};

}  // namespace djinn
