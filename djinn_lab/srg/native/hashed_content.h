// What the structural hash of a program covers: djinn_lab/srg/identity.py has the same in Python, and says what
// that is.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

#include "messagepack.h"
#include "plan_material.h"

namespace djinn_wire {

// Numbers ids in the order of their first use. None takes a number, too.
class Uses {
 public:
  explicit Uses(size_t bytes) : numbering_(bytes) {}

  uint64_t of(int64_t id) {
    const uint64_t place = numbering_.of(id);
    if (place == order_.size()) order_.push_back(id);
    return place + (place >= none_at_);
  }

  void none() { none_at_ = std::min(none_at_, order_.size()); }

  const std::vector<int64_t>& order() const { return order_; }

 private:
  Numbering numbering_;
  std::vector<int64_t> order_;
  size_t none_at_ = SIZE_MAX;
};

// Reads a program as encode_program writes it.
class HashedContent {
 public:
  explicit HashedContent(std::string_view program)
      : input_(program),
        output_(program.size() + 16),
        nodes_(program.size() + 16),
        values_(program.size()),
        storages_(program.size()) {}

  void run() {
    input_.literal("\x8a\xa5metas");
    const std::vector<std::string_view> metas = table();
    input_.literal("\xa9templates");
    const std::vector<std::string_view> templates = table();
    input_.literal("\xa6scopes");
    input_.skip();
    input_.literal("\xa7sources");
    for (uint64_t left = input_.array(); left > 0; --left) source();
    input_.literal("\xa5nodes");
    const uint64_t count = input_.array();
    nodes_.array(count);
    for (uint64_t left = count; left > 0; --left) node();
    input_.literal("\xa4keep");
    const std::vector<int64_t> keep = numbers();
    input_.literal("\xa5" "fetch");
    const std::vector<int64_t> fetch = numbers();
    input_.literal("\xa7release");
    input_.skip();
    input_.literal("\xa9rng_state");
    const bool is_random = !input_.nil();
    if (is_random) input_.binary();
    input_.literal("\xa8settings");
    const std::string_view settings = one();
    const bool has_settings = settings != "\xc0";

    output_.array(has_settings ? 8 : 7);
    write_sources();
    copy(output_, nodes_.bytes());
    write_used(metas, metas_);
    write_used(templates, templates_);
    write_values(keep, true);
    write_values(fetch, false);
    output_.byte(is_random ? 0xc3 : 0xc2);
    if (has_settings) copy(output_, settings);
  }

  std::string_view bytes() const { return output_.bytes(); }

 private:
  struct Source {
    int64_t value, storage, meta;
    std::string_view residency;
    uint64_t number = 0;  // of its value
  };

  // Any one value, as it is written.
  std::string_view one() {
    const auto* from = reinterpret_cast<const char*>(input_.at());
    input_.skip();
    return {from, static_cast<size_t>(reinterpret_cast<const char*>(input_.at()) - from)};
  }

  std::vector<std::string_view> table() {
    std::vector<std::string_view> rows(input_.array());
    for (std::string_view& row : rows) row = one();
    return rows;
  }

  std::vector<int64_t> numbers() {
    std::vector<int64_t> row(input_.array());
    for (int64_t& number : row) number = input_.number();
    return row;
  }

  static void copy(Output& output, std::string_view bytes) {
    const auto* from = reinterpret_cast<const uint8_t*>(bytes.data());
    output.raw(from, from + bytes.size(), from + bytes.size());
  }

  void source() {
    input_.array_of(6);
    const int64_t value = input_.number(), storage = input_.number(), meta = input_.number();
    sources_.push_back({value, storage, meta, one()});
    input_.skip();  // blob
    input_.skip();  // bytes
  }

  void node() {
    input_.array_of(8);
    nodes_.byte(0x97);
    nodes_.unsigned_number(templates_.of(input_.number()));
    used(values_);
    used(values_);
    used(metas_);
    used(storages_);
    input_.skip();  // scope
    copy(nodes_, one());  // scalars
    copy(nodes_, one());  // dynamic
  }

  void used(Uses& uses) {
    const uint64_t count = input_.array();
    nodes_.array(count);
    for (uint64_t left = count; left > 0; --left) {
      if (input_.nil()) {
        uses.none();
        nodes_.byte(0xc0);
      } else {
        nodes_.unsigned_number(uses.of(input_.number()));
      }
    }
  }

  // By first use, then those that no node uses.
  void write_sources() {
    for (Source& source : sources_) source.number = values_.of(source.value);
    std::stable_sort(sources_.begin(), sources_.end(),
                     [](const Source& one, const Source& other) { return one.number < other.number; });
    output_.array(sources_.size());
    for (const Source& source : sources_) {
      output_.byte(0x94);
      output_.unsigned_number(source.number);
      output_.unsigned_number(storages_.of(source.storage));
      output_.unsigned_number(metas_.of(source.meta));
      copy(output_, source.residency);
    }
  }

  // The rows of a table that are used, by first use.
  void write_used(const std::vector<std::string_view>& rows, const Uses& uses) {
    output_.array(uses.order().size());
    for (const int64_t row : uses.order()) {
      expect(row >= 0 && static_cast<size_t>(row) < rows.size(), "a table has no such row");
      copy(output_, rows[static_cast<size_t>(row)]);
    }
  }

  void write_values(const std::vector<int64_t>& row, bool sorted) {
    std::vector<uint64_t> found;
    for (const int64_t value : row) found.push_back(values_.of(value));
    if (sorted) std::sort(found.begin(), found.end());
    output_.array(found.size());
    for (const uint64_t number : found) output_.unsigned_number(number);
  }

  Input input_;
  Output output_, nodes_;
  Uses values_, storages_, metas_{0}, templates_{0};
  std::vector<Source> sources_;
};

}  // namespace djinn_wire
