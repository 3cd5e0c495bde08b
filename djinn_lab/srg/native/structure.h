// What follows from how a program's nodes hang together: djinn_lab/srg/structure.py has the same in Python, and
// says what it is.
#pragma once

#include <cstdint>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "messagepack.h"

namespace djinn_wire {

using Numbers = std::vector<int64_t>;

// In place of a number: there is none, or it is known only when the program runs.
constexpr int64_t kNone = -1;
// In place of a node: it was there before the first one, or it is there after the last one.
constexpr int64_t kBefore = -1, kLasting = -1;

// Numbers rows in the order in which they are met. Rows are compared and never hashed: no client can choose
// rows that meet in one place.
class Rows {
 public:
  // Returns the row's number and whether it is a new one.
  std::pair<size_t, bool> of(const Numbers& row) {
    const auto [found, is_new] = numbers_.try_emplace(row, numbers_.size());
    return {found->second, is_new};
  }

 private:
  std::map<Numbers, size_t> numbers_;
};

// As in djinn_lab/srg/wiring.py.
struct Call {
  int64_t pattern;
  Numbers inputs, outputs, shared;
};

// Sizes that one node needs at once.
struct Together {
  Numbers sizes;
  int64_t node;
};

// Of a valid program, from the material of its key, where ids count from 0.
class Structure {
 public:
  // ``sources``: the size of each source's storage.
  Structure(std::string_view material, Numbers sources)
      : input_(material), ids_max_(material.size()), source_sizes_(std::move(sources)) {}

  void run() {
    input_.array_of(8);
    input_.skip();  // metas
    input_.skip();  // templates
    input_.skip();  // scopes
    const uint64_t sources = input_.array();
    expect(sources == source_sizes_.size(), "each source has one size");
    for (size_t place = 0; place < sources; ++place) source(place);
    const auto nodes = static_cast<int64_t>(input_.array());
    for (int64_t position = 0; position < nodes; ++position) node(position);
    const Numbers keep = outliving(), fetch = outliving();
    for (const int64_t storage : keep) {
      Memory& memory = memory_[storage];
      if (memory.maker >= 0 && memory.size != kNone && !memory.counted) kept.push_back(memory.size);
      memory.counted = true;
    }
    fill_columns();
  }

  std::vector<Call> calls;
  Numbers call_of, counts, sizes, made, freed, kept, reads;
  std::vector<Together> touched;
  size_t first_reads = 0;

 private:
  struct Value {
    int64_t storage = kNone, layout = kNone;
    int64_t held_at = kNone;  // its place among the sources, until it is read
  };

  // ``read``, ``met``: the last node that reads it, and that was counted for it.
  struct Memory {
    int64_t size = kNone, blob_meta = kNone, maker = kUnnamed;
    int64_t last = kNone, read = kNone, met = kNone;
    bool lasting = false, counted = false;
  };

  static constexpr int64_t kUnnamed = -2;

  // Values and storages are numbered together.
  int64_t id() {
    const int64_t id = input_.number();
    expect(id >= 0 && static_cast<uint64_t>(id) < ids_max_, "an id is out of range");
    if (static_cast<size_t>(id) >= values_.size()) {
      values_.resize(static_cast<size_t>(id) + 1);
      memory_.resize(values_.size());
    }
    return id;
  }

  void ids(Numbers& row) {
    row.clear();
    for (uint64_t left = input_.array(); left > 0; --left) row.push_back(input_.nil() ? kNone : id());
  }

  void numbers(Numbers& row) {
    row.clear();
    for (uint64_t left = input_.array(); left > 0; --left) {
      row.push_back(input_.nil() ? kNone : input_.number());
    }
  }

  void source(size_t place) {
    input_.array_of(6);
    const int64_t value = id(), storage = id(), meta = input_.number();
    input_.skip();  // residency
    const bool has_blob = !input_.boolean(), has_bytes = !input_.nil();
    if (has_bytes) input_.number();
    const bool held = !has_blob && !has_bytes;
    values_[value] = {storage, meta, held ? static_cast<int64_t>(place) : kNone};
    Memory& memory = memory_[storage];
    memory.maker = kBefore;
    memory.size = source_sizes_[place];
    memory.lasting = true;
    if (!has_blob) return;
    if (memory.blob_meta == kNone) memory.blob_meta = meta;
    blobs_.push_back(storage);
  }

  void node(int64_t position) {
    input_.array_of(8);
    call_.pattern = input_.number();
    ids(inputs_);
    ids(outputs_);
    numbers(call_.outputs);
    ids(storages_);
    for (int skipped = 0; skipped < 3; ++skipped) input_.skip();  // scope, scalars, dynamic
    expect(outputs_.size() == storages_.size(), "each output lies in one storage");
    read(position);
    make(position);
    touch(position);
    count_call();
  }

  void read(int64_t position) {
    call_.inputs.clear();
    touched_.clear();
    for (const int64_t input : inputs_) {
      Value none, &value = input == kNone ? none : values_[input];
      call_.inputs.push_back(value.layout);
      touched_.push_back(value.storage);
      if (value.storage != kNone) memory_[value.storage].read = position;
      if (value.held_at == kNone) continue;
      reads.push_back(value.held_at);
      value.held_at = kNone;
    }
    if (position == 0) first_reads = reads.size();
  }

  void make(int64_t position) {
    call_.shared.clear();
    for (size_t place = 0; place < outputs_.size(); ++place) {
      const int64_t value = outputs_[place], storage = storages_[place];
      touched_.push_back(storage);
      call_.shared.push_back(storage == kNone ? kNone : memory_[storage].read == position);
      if (value == kNone || storage == kNone) continue;
      values_[value].storage = storage;
      values_[value].layout = place < call_.outputs.size() ? call_.outputs[place] : kNone;
      Memory& memory = memory_[storage];
      if (memory.maker != kUnnamed) continue;
      memory.maker = position;
      memory.size = values_[value].layout;
      fresh_.push_back(storage);
    }
  }

  void touch(int64_t position) {
    row_.clear();
    bool has_none = false;
    for (const int64_t storage : touched_) {
      if (storage == kNone) {
        if (!has_none) row_.push_back(kNone);
        has_none = true;
      } else if (Memory& memory = memory_[storage]; memory.met != position) {
        memory.met = memory.last = position;
        row_.push_back(memory.size);
      }
    }
    if ((row_.size() <= 1 && !inputs_.empty()) || !together_.of(row_).second) return;
    std::erase(row_, kNone);
    touched.push_back({row_, position});
  }

  void count_call() {
    row_.assign({call_.pattern, static_cast<int64_t>(call_.inputs.size())});
    row_.insert(row_.end(), call_.inputs.begin(), call_.inputs.end());
    row_.push_back(static_cast<int64_t>(call_.outputs.size()));
    row_.insert(row_.end(), call_.outputs.begin(), call_.outputs.end());
    row_.insert(row_.end(), call_.shared.begin(), call_.shared.end());
    const auto [number, is_new] = different_.of(row_);
    if (is_new) {
      calls.push_back(call_);
      counts.push_back(0);
    }
    ++counts[number];
    call_of.push_back(static_cast<int64_t>(number));
  }

  // Returns the storages of values that outlive the program.
  Numbers outliving() {
    Numbers row;
    ids(row);
    for (int64_t& value : row) {
      expect(value != kNone && values_[value].storage != kNone, "a value that is kept has no storage");
      value = values_[value].storage;
      memory_[value].lasting = true;
    }
    return row;
  }

  void fill_columns() {
    for (auto storage = blobs_.rbegin(); storage != blobs_.rend(); ++storage) {
      int64_t& meta = memory_[*storage].blob_meta;
      if (meta != kNone) add_row(meta, kBefore, kLasting);
      meta = kNone;
    }
    for (const int64_t storage : fresh_) {
      const Memory& memory = memory_[storage];
      if (memory.size != kNone) add_row(memory.size, memory.maker, memory.lasting ? kLasting : memory.last);
    }
  }

  void add_row(int64_t size, int64_t maker, int64_t last) {
    sizes.push_back(size);
    made.push_back(maker);
    freed.push_back(last);
  }

  Input input_;
  size_t ids_max_;
  Numbers source_sizes_;
  std::vector<Value> values_;
  std::vector<Memory> memory_;
  Numbers blobs_, fresh_;
  Rows different_, together_;
  Call call_{};  // that of the node that is being read, as are these rows
  Numbers inputs_, outputs_, storages_, touched_, row_;
};

}  // namespace djinn_wire
