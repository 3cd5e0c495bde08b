// From what was recorded to the bytes of a program: reachability, interning, encoding. Backwards over the pending nodes: a
// node is needed when something still holds its result, when a needed node reads it, when it writes memory that is still
// looked at, or when it draws from the random stream (whose state all cells share).
#pragma once
#include "recorder.h"

namespace djinn {
inline const char* phase_name(Phase phase) {
  static const char* names[] = {"forward", "backward", "optimizer", "other"};
  return names[int(phase)];
}
inline const char* residency_name(Residency residency) {
  static const char* names[] = {"weight", "activation", "kv", "input", "output"};
  return names[int(residency)];
}

// Items by first use, each once.
template <typename K>
class Table {
 public:
  std::vector<K> items;
  uint32_t add(K item) {
    auto [found, is_new] = index_.try_emplace(item, uint32_t(items.size()));
    if (is_new) items.push_back(item);
    return found->second;
  }

 private:
  std::unordered_map<K, uint32_t> index_;
};

// A result of a pending node, as the program names it.
struct Result {
  OutKind kind;
  uint64_t id, storage;
};

struct Assembly {
  Recorder& recorder;
  const std::vector<uint64_t>& fetch;
  uint64_t first, count;
  std::vector<uint8_t> wanted, made, storage_wanted;
  std::unordered_set<uint64_t> old_storages;
  std::vector<size_t> kept;

  Assembly(Recorder& recorder, const std::vector<uint64_t>& fetch)
      : recorder(recorder), fetch(fetch), first(recorder.first_pending_), count(recorder.next_id_ - recorder.first_pending_),
        wanted(count, 0), made(count, 0), storage_wanted(count, 0) {}

  uint64_t storage_id(uint64_t value) const {
    if (value < first) return value;
    auto* base = recorder.values_[value - first].base;
    return base ? base->id : value;
  }
  bool storage_is_wanted(uint64_t storage) const {
    if (storage >= first) {
      if (storage_wanted[storage - first]) return true;
    } else if (old_storages.count(storage)) {
      return true;
    }
    auto* base = find(storage);
    return base && base->alive;
  }
  Base* find(uint64_t storage) const {
    if (storage >= first) return recorder.values_[storage - first].base;
    auto found = recorder.held_.find(storage);
    return found == recorder.held_.end() ? nullptr : found->second;
  }
  void want_value(uint64_t value) {
    if (value >= first) wanted[value - first] = 1;
    uint64_t storage = storage_id(value);
    if (storage >= first) storage_wanted[storage - first] = 1;
    else old_storages.insert(storage);
  }
  template <typename F>
  static void each_result(const uint64_t* node, F&& visit) {
    auto* plan = reinterpret_cast<const Plan*>(node[0]);
    uint64_t id = node[2];
    const uint64_t* inputs = node + 3;
    for (const auto& out : plan->outs) switch (out.kind) {
        case OutKind::none: visit(out, uint64_t(0)); break;
        case OutKind::same: visit(out, inputs[out.input]); break;
        default: visit(out, id++);
      }
  }
  bool is_needed(const uint64_t* node) const {
    auto* plan = reinterpret_cast<const Plan*>(node[0]);
    if (plan->random || plan->dynamic) return true;
    uint64_t id = node[2];
    for (int i = 0; i < plan->n_new; i++, id++) {
      if (wanted[id - first]) return true;
      const auto& value = recorder.values_[id - first];
      if (value.is_base && value.base && value.base->alive) return true;
    }
    for (int i : plan->written)
      if (storage_is_wanted(storage_id(node[3 + i]))) return true;
    return false;
  }
  void select() {
    for (uint64_t value : fetch) want_value(value);
    for (size_t i = recorder.positions_.size(); i-- > 0;) {
      const uint64_t* node = recorder.words_.data() + recorder.positions_[i];
      if (!is_needed(node)) continue;
      kept.push_back(i);
      auto* plan = reinterpret_cast<const Plan*>(node[0]);
      for (int k = 0; k < plan->n_inputs; k++) want_value(node[3 + k]);
    }
    std::reverse(kept.begin(), kept.end());
  }
};
}  // namespace djinn
