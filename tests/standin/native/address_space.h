// Ranges of addresses: handed out first fit, joined again when they come back.
#pragma once

#include <c10/util/Exception.h>

#include <cstddef>
#include <iterator>
#include <map>

namespace standin {

class AddressSpace {
 public:
  explicit AddressSpace(size_t size) { free_[0] = size; }

  size_t take(size_t size) {
    for (auto it = free_.begin(); it != free_.end(); ++it) {
      const auto [offset, available] = *it;
      if (available < size) continue;
      free_.erase(it);
      if (available > size) free_[offset + size] = available - size;
      return offset;
    }
    TORCH_CHECK_WITH(OutOfMemoryError, false, "standin: no range of ", size, " addresses is free");
  }

  void give_back(size_t offset, size_t size) {
    const auto after = free_.lower_bound(offset);
    if (after != free_.end() && offset + size == after->first) {
      size += after->second;
      free_.erase(after);
    }
    const auto next = free_.lower_bound(offset);
    if (next != free_.begin()) {
      const auto before = std::prev(next);
      if (before->first + before->second == offset) {
        before->second += size;
        return;
      }
    }
    free_[offset] = size;
  }

 private:
  std::map<size_t, size_t> free_;  // offset -> size
};

}  // namespace standin
