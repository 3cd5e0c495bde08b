// Pinned host memory: allocated here, or any range that was registered. Either needs a context, as on a GPU.
#pragma once

#include <ATen/core/CachingHostAllocator.h>
#include <c10/util/Exception.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "device.h"

namespace standin {

class PinnedRanges {
 public:
  bool contains(uintptr_t address) {
    const std::lock_guard<std::mutex> held(lock_);
    return last_before(address + 1) > address;
  }

  void add(uintptr_t address, size_t size) {
    const std::lock_guard<std::mutex> held(lock_);
    TORCH_CHECK(last_before(address + size) <= address, "standin: part or all of the range is already pinned");
    ranges_[address] = size;
  }

  void remove(uintptr_t address) {
    const std::lock_guard<std::mutex> held(lock_);
    TORCH_CHECK(ranges_.erase(address) == 1, "standin: no pinned range begins at this address");
  }

 private:
  // The end of the last range that begins before the address.
  uintptr_t last_before(uintptr_t address) const {
    const auto after = ranges_.lower_bound(address);
    if (after == ranges_.begin()) return 0;
    const auto& [begin, size] = *std::prev(after);
    return begin + size;
  }

  std::mutex lock_;
  std::map<uintptr_t, size_t> ranges_;  // begin -> size
};

inline auto& pinned = *new PinnedRanges();

inline bool is_pinned(const void* data) { return pinned.contains(reinterpret_cast<uintptr_t>(data)); }

inline void pin(uintptr_t address, size_t size) {
  {
    const Hold held;
    enter(device_at(current_device));
  }
  pinned.add(address, size);
}

struct PinnedAllocator final : at::HostAllocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* memory = nullptr;
    if (bytes != 0) {
      TORCH_CHECK(::posix_memalign(&memory, 4096, bytes) == 0, "standin: no host memory for ", bytes, " pinned bytes");
      pin(reinterpret_cast<uintptr_t>(memory), bytes);
    }
    return {memory, memory, &release_pinned, c10::Device(c10::kCPU)};
  }

  static void release_pinned(void* memory) {
    if (memory == nullptr) return;
    pinned.remove(reinterpret_cast<uintptr_t>(memory));
    std::free(memory);
  }

  // Copies under way keep their tensors, so what is freed is in no stream's use: nothing is recorded or cached.
  bool record_event(void*, void*, c10::Stream) override { return true; }
  void empty_cache() override {}
  at::HostStats get_stats() override { return {}; }
  void reset_accumulated_stats() override {}
  void reset_peak_stats() override {}

  c10::DeleterFnPtr raw_deleter() const override { return &release_pinned; }
  void copy_data(void* to, const void* from, size_t count) const override { std::memcpy(to, from, count); }
};

inline auto& pinned_allocator = *new PinnedAllocator();

}  // namespace standin
