// The values of a run by slot: those that are here alone, and those of the session that it uses.
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <vector>

#include "account.h"
#include "plan.h"
#include "records.h"

namespace djinn {

// A slot's value is `here` alone, or it is one of the session's, which Python counts and looks at.
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

// The marks that a MarkedStorage is; a cast by pybind11 looks its types up each time.
inline Marks* marks_in(PyObject* storage) {
  return reinterpret_cast<py::detail::instance*>(storage)->get_value_and_holder().value_ptr<Marks>();
}

// What takes no lock is for one thread; `live_bytes` is for any.
class Values {
 public:
  Values(std::shared_ptr<Plan> plan, std::shared_ptr<Account> account, std::shared_ptr<Records> records,
         py::object bridge, py::dict tensors, py::dict storage_of)
      : plan_(std::move(plan)),
        account_(std::move(account)),
        records_(std::move(records)),
        bridge_(std::move(bridge)),
        tensors_(std::move(tensors)),
        storage_of_(std::move(storage_of)),
        slots_(plan_->origins.size()) {}

  const Slot& operator[](int32_t slot) const { return slots_[slot]; }
  const Memory& memory(int32_t slot) const { return memories_[slots_[slot].memory]; }

  Marks* marks_of(int32_t slot) const { return slots_[slot].memory < 0 ? nullptr : memory(slot).marks; }

  int64_t live_bytes() const { return live_bytes_.load(std::memory_order_relaxed); }

  // The value's number in the session. With the GIL.
  py::object identifier(int32_t slot) const {
    const Origin& origin = plan_->origins[slot];
    return origin.node < 0 ? records_->source(origin.place) : records_->output(origin.node, origin.place);
  }

  // Looks a value of the session up, where it is there, and no restore is still filling it. With the GIL.
  void bind(int32_t slot) {
    const py::object key = identifier(slot);
    PyObject* found = PyDict_GetItem(tensors_.ptr(), key.ptr());
    if (found == nullptr) return;
    PyObject* storage = PyDict_GetItem(storage_of_.ptr(), key.ptr());
    auto* marks = storage == nullptr ? nullptr : marks_in(storage);
    if (marks != nullptr && marks->arriving.load()) return;
    Slot& one = slots_[slot];
    one.owner = Owner::session;
    if (found == Py_None) return;
    one.tensor = THPVariable_Unpack(found);
    if (marks == nullptr) return;
    if (marks->run != number_) claim(new_memory(one.tensor), marks, storage);
    one.memory = marks->entry;
    ++memories_[one.memory].session;
  }

  // The session may have other memory for a slot: a copy of a shared weight. With the GIL.
  void look_again(int32_t slot) {
    const int32_t memory = slots_[slot].memory;
    if (memory < 0) return;
    PyObject* storage = PyDict_GetItem(storage_of_.ptr(), identifier(slot).ptr());
    if (storage != nullptr && storage != memories_[memory].storage.ptr())
      claim(memory, marks_in(storage), storage);
  }

  // Keeps what a node made; returns the bytes that it takes, besides memory that is counted already.
  int64_t keep(const PlannedNode& node, int32_t slot, at::Tensor tensor) {
    Slot& one = slots_[slot];
    one.owner = Owner::here;
    if (!tensor.defined()) return 0;  // some CPU kernels return no workspace where their shape rule says one
    one.tensor = std::move(tensor);
    if (one.tensor._is_zerotensor()) return 0;  // forward-mode zeros take no memory
    one.memory = memory_under(node, slot);
    int64_t added = 0;
    if (one.memory < 0) {
      one.memory = new_memory(one.tensor);
      added = memories_[one.memory].nbytes;
      count(added);
    }
    ++memories_[one.memory].here;
    return added;
  }

  // After an op that may have changed the size of what it wrote. True when the session must know.
  bool recount(int32_t slot) {
    if (slots_[slot].memory < 0) return false;
    Memory& memory = memories_[slots_[slot].memory];
    const int64_t grown = static_cast<int64_t>(storage_of(slots_[slot].tensor)->nbytes()) - memory.nbytes;
    memory.nbytes += grown;
    if (memory.marks != nullptr) return grown != 0;
    count(grown);
    account_->add(grown);
    return false;
  }

  void free(int32_t slot) {
    if (slots_[slot].owner == Owner::here) free_here(slot);
    else if (slots_[slot].owner == Owner::session) free_of_session(slot);
  }

  // These slots, and all others on their memory, become the session's. With the GIL.
  void hand_over_all_on(const std::vector<int32_t>& slots) {
    std::vector<int32_t> all;
    for (const int32_t slot : slots) {
      if (slots_[slot].owner == Owner::here) all.push_back(slot);
      if (slots_[slot].memory < 0 || memory(slot).here <= (slots_[slot].owner == Owner::here)) continue;
      for (size_t other = 0; other < slots_.size(); ++other)
        if (slots_[other].owner == Owner::here && slots_[other].memory == slots_[slot].memory)
          all.push_back(static_cast<int32_t>(other));
    }
    std::sort(all.begin(), all.end());
    all.erase(std::unique(all.begin(), all.end()), all.end());
    hand_over(all);
  }

  // Everything that is here becomes the session's, and nothing is used any more. With the GIL.
  void flush() {
    std::vector<int32_t> all;
    for (size_t slot = 0; slot < slots_.size(); ++slot)
      if (slots_[slot].owner == Owner::here) all.push_back(static_cast<int32_t>(slot));
    hand_over(all);
    std::fill(slots_.begin(), slots_.end(), Slot());
    memories_.clear();
    unused_.clear();
  }

 private:
  static c10::StorageImpl* storage_of(const at::Tensor& tensor) { return tensor.storage().unsafeGetStorageImpl(); }

  void count(int64_t nbytes) {
    live_bytes_.store(live_bytes_.load(std::memory_order_relaxed) + nbytes, std::memory_order_relaxed);
  }

  void claim(int32_t memory, Marks* marks, PyObject* storage) {
    memories_[memory].marks = marks;
    memories_[memory].storage = py::reinterpret_borrow<py::object>(storage);
    marks->entry = memory;
    marks->run = number_;
  }

  int32_t new_memory(const at::Tensor& tensor) {
    if (unused_.empty()) {
      unused_.push_back(static_cast<int32_t>(memories_.size()));
      memories_.emplace_back();
    }
    const int32_t found = unused_.back();
    unused_.pop_back();
    memories_[found].nbytes = static_cast<int64_t>(storage_of(tensor)->nbytes());
    return found;
  }

  // Where a result lies that is no memory of its own; -1 when it is.
  int32_t memory_under(const PlannedNode& node, int32_t made) const {
    if (slots_[made].tensor.storage().use_count() == 1) return -1;
    for (int32_t at = node.touched.begin; at < node.touched.end; ++at)
      if (shares(plan_->places[at], made)) return slots_[plan_->places[at]].memory;
    for (size_t slot = 0; slot < slots_.size(); ++slot)
      if (shares(static_cast<int32_t>(slot), made)) return slots_[slot].memory;
    return -1;
  }

  bool shares(int32_t slot, int32_t with) const {
    return slot != with && slots_[slot].memory >= 0 && storage_of(slots_[slot].tensor) == storage_of(slots_[with].tensor);
  }

  void free_here(int32_t slot) {
    const int32_t memory = slots_[slot].memory;
    slots_[slot] = Slot();
    if (memory < 0 || --memories_[memory].here != 0) return;
    if (memories_[memory].marks == nullptr) {
      count(-memories_[memory].nbytes);
      account_->release(memories_[memory].nbytes);
      unused_.push_back(memory);
    } else if (!memories_[memory].waiting.empty()) {
      const py::gil_scoped_acquire held;
      drop_waiting(memory);
    }
  }

  void free_of_session(int32_t slot) {
    const py::gil_scoped_acquire held;
    const int32_t memory = slots_[slot].memory;
    if (memory < 0) {
      drop(slot);
      return;
    }
    memories_[memory].waiting.push_back(slot);
    if (memories_[memory].here == 0) drop_waiting(memory);
  }

  void drop(int32_t slot) {
    slots_[slot] = Slot();
    bridge_.attr("drop")(identifier(slot));
  }

  // Memory stays counted until the last view of it that only this run has seen is gone, too.
  void drop_waiting(int32_t memory) {
    const std::vector<int32_t> waiting = std::exchange(memories_[memory].waiting, {});
    for (const int32_t slot : waiting) drop(slot);
    memories_[memory].session -= static_cast<int32_t>(waiting.size());
    if (memories_[memory].session != 0) return;
    memories_[memory].marks->run = 0;
    memories_[memory] = Memory();
    unused_.push_back(memory);
  }

  void hand_over(const std::vector<int32_t>& slots) {
    if (slots.empty()) return;
    py::list identifiers, tensors;
    std::vector<int32_t> claimed;
    for (const int32_t slot : slots) {
      const int32_t memory = slots_[slot].memory;
      if (memory >= 0 && memories_[memory].marks == nullptr) claimed.push_back(memory);
      identifiers.append(identifier(slot));
      tensors.append(py::reinterpret_steal<py::object>(THPVariable_Wrap(slots_[slot].tensor)));
    }
    std::sort(claimed.begin(), claimed.end());
    claimed.erase(std::unique(claimed.begin(), claimed.end()), claimed.end());
    for (const int32_t memory : claimed) count(-memories_[memory].nbytes);  // a reader now counts no byte twice
    bridge_.attr("place")(identifiers, tensors);
    for (size_t place = 0; place < slots.size(); ++place) {
      Slot& slot = slots_[slots[place]];
      slot.owner = Owner::session;
      if (slot.memory < 0) continue;
      Memory& memory = memories_[slot.memory];
      if (memory.marks == nullptr) {
        PyObject* storage = PyDict_GetItem(storage_of_.ptr(), py::object(identifiers[place]).ptr());
        if (storage == nullptr) throw std::logic_error("a value without a storage");
        claim(slot.memory, marks_in(storage), storage);
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
  const std::shared_ptr<Records> records_;
  const py::object bridge_;
  const py::dict tensors_, storage_of_;
  std::vector<Slot> slots_;
  std::vector<Memory> memories_;
  std::vector<int32_t> unused_;
  std::atomic<int64_t> live_bytes_{0};
};

}  // namespace djinn
