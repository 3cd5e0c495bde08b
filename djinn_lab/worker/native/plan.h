// A program with its values numbered from 0 (slots), worked out once for programs with equal keys.
#pragma once

#include <torch/csrc/Dtype.h>

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "op.h"

namespace djinn {

// A range of one of a plan's vectors.
struct Span {
  int32_t begin = 0, end = 0;
  bool empty() const { return begin == end; }
};

struct Meta {
  std::vector<int64_t> shape, stride;
  c10::ScalarType dtype;
  int64_t span_bytes;
};

struct Made {
  int32_t place, slot, meta;
  bool fresh, own;
};

struct PlannedNode {
  Op* op = nullptr;  // null: Python runs it
  Span inputs, touched, writes, made, frees, outputs;
  bool reads_what_it_writes = false;  // by another argument
  int32_t first_number = 0;
  int64_t reserve_bytes = 0;
};

// Where a slot's value is named in a program: by its source, or as an output of a node.
struct Origin {
  int32_t node, place;  // node -1: a source
  int32_t last_node = -1;
};

class Plan {
 public:
  // `metas`: djinn_lab.worker.preparation.Expected; `ops`: by template, None where Python must call it.
  Plan(const py::sequence& nodes, const py::sequence& sources, const py::sequence& keep, const py::sequence& fetch,
       const py::sequence& metas, std::vector<std::shared_ptr<Op>> ops)
      : ops_(std::move(ops)) {
    for (const py::handle meta : metas) {
      const auto* dtype = reinterpret_cast<THPDtype*>(meta.attr("dtype").ptr());
      this->metas.push_back({py::cast<std::vector<int64_t>>(meta.attr("shape")),
                             py::cast<std::vector<int64_t>>(meta.attr("stride")), dtype->scalar_type,
                             py::cast<int64_t>(meta.attr("span_bytes"))});
    }
    std::vector<int32_t> needed;
    for (size_t place = 0; place < sources.size(); ++place) {
      const int32_t slot = define(py::cast<int64_t>(sources[place].attr("value")), -1, static_cast<int32_t>(place));
      if (py::cast<bool>(sources[place].attr("held"))) needed.push_back(slot);
    }
    this->nodes.reserve(nodes.size());
    for (size_t index = 0; index < nodes.size(); ++index) add(nodes[index], static_cast<int32_t>(index));
    for (const py::sequence& values : {keep, fetch})
      for (const py::handle value : values)
        if (const auto found = slots_.find(py::cast<int64_t>(value)); found != slots_.end())
          needed.push_back(found->second);
    find_last_uses(needed);
    slots_.clear();
  }

  std::vector<Meta> metas;
  std::vector<PlannedNode> nodes;
  std::vector<int32_t> places;  // slots, for the spans of the nodes
  std::vector<Made> made;
  std::vector<Origin> origins;  // by slot
  int32_t number_count = 0;

 private:
  int32_t define(int64_t value, int32_t node, int32_t place) {
    const auto [found, is_new] = slots_.try_emplace(value, static_cast<int32_t>(origins.size()));
    if (is_new) origins.push_back({node, place});
    return found->second;
  }

  void add(py::handle record, int32_t index) {
    PlannedNode& node = nodes.emplace_back();
    const auto inputs = py::cast<std::vector<std::optional<int64_t>>>(record.attr("inputs"));
    const auto outputs = py::cast<std::vector<std::optional<int64_t>>>(record.attr("outputs"));
    const auto metas_of = py::cast<std::vector<std::optional<int32_t>>>(record.attr("output_metas"));
    Op* op = ops_.at(py::cast<size_t>(record.attr("template"))).get();
    const bool dynamic = py::cast<bool>(record.attr("dynamic"));
    bool all_known = true;
    std::vector<int32_t> slots;
    for (const auto& value : inputs) {
      const auto found = value ? slots_.find(*value) : slots_.end();
      slots.push_back(found == slots_.end() ? -1 : found->second);
      all_known = all_known && (!value || found != slots_.end());
    }
    node.inputs = append(slots);
    if (op != nullptr) {
      if (op->writes.empty()) node.writes = {0, 0};
      else node.writes = append_written(op->writes, slots);
      for (int32_t place = 0; place < static_cast<int32_t>(slots.size()); ++place)
        if (!contains(op->writes, place))
          for (const int32_t written : op->writes)
            node.reads_what_it_writes = node.reads_what_it_writes || slots[place] == slots.at(written);
    }
    if (op != nullptr && !dynamic && all_known && node.inputs.end - node.inputs.begin == op->tensor_count) node.op = op;
    node.outputs.begin = node.made.begin = 0;
    std::vector<int32_t> new_slots;
    std::vector<bool> is_new;
    for (size_t place = 0; place < outputs.size(); ++place) {
      const auto& value = outputs[place];
      const bool among_inputs = value && std::find(inputs.begin(), inputs.end(), value) != inputs.end();
      is_new.push_back(value && !among_inputs);
      if (!value) continue;
      const int32_t slot = among_inputs ? slots_.count(*value) ? slots_[*value] : -1
                                        : define(*value, index, static_cast<int32_t>(place));
      if (slot >= 0) new_slots.push_back(slot);
      slots.push_back(slot);
    }
    node.touched = append(slots);
    node.outputs = append(new_slots);
    node.first_number = number_count;
    if (node.op == nullptr) return;
    number_count += static_cast<int32_t>(op->numbers.size());
    node.made.begin = static_cast<int32_t>(made.size());
    for (size_t place = 0; place < std::min(outputs.size(), metas_of.size()); ++place) {
      if (!is_new[place]) continue;
      const int32_t meta = metas_of[place].value();
      const bool fresh = op->fresh.size() == outputs.size() ? op->fresh[place] : op->fresh.empty() || op->fresh[0];
      made.push_back({static_cast<int32_t>(place), slots_.at(*outputs[place]), meta, fresh,
                      contains(op->own, static_cast<int32_t>(place))});
      if (fresh) node.reserve_bytes += metas.at(meta).span_bytes;
    }
    node.made.end = static_cast<int32_t>(made.size());
  }

  static bool contains(const std::vector<int32_t>& numbers, int32_t number) {
    return std::find(numbers.begin(), numbers.end(), number) != numbers.end();
  }

  // The slots that are there, in order.
  Span append(const std::vector<int32_t>& slots) {
    const auto begin = static_cast<int32_t>(places.size());
    for (const int32_t slot : slots)
      if (slot >= 0) places.push_back(slot);
    return {begin, static_cast<int32_t>(places.size())};
  }

  Span append_written(const std::vector<int32_t>& writes, const std::vector<int32_t>& inputs) {
    std::vector<int32_t> written;
    for (const int32_t place : writes) written.push_back(inputs.at(place));
    return append(written);
  }

  void find_last_uses(const std::vector<int32_t>& needed) {
    std::vector<bool> used(origins.size(), false);
    std::vector<bool> kept(origins.size(), false);
    for (const int32_t slot : needed) kept[slot] = true;
    for (auto index = static_cast<int32_t>(nodes.size()) - 1; index >= 0; --index) {
      PlannedNode& node = nodes[index];
      std::vector<int32_t> dead;
      for (int32_t at = node.touched.begin; at < node.touched.end; ++at) {
        const int32_t slot = places[at];
        if (used[slot]) continue;
        used[slot] = true;
        origins[slot].last_node = index;
        if (!kept[slot]) dead.push_back(slot);
      }
      node.frees = append(dead);
    }
  }

  std::vector<std::shared_ptr<Op>> ops_;
  std::unordered_map<int64_t, int32_t> slots_;
};

}  // namespace djinn
