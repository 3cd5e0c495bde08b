// Device memory as torch asks for it.
#pragma once

#include "device.h"

namespace standin {

inline Block* take_or_throw(Device& device, size_t bytes) {
  const int stream = recording == nullptr ? current_stream[device.index] : recording->pool_stream;
  if (Block* block = device.memory.take(bytes, stream)) return block;
  // The cache may hold what is missing. Giving memory back to the driver waits for the device.
  if (recording == nullptr) {
    ++device.memory.stats.num_alloc_retries;
    synchronize(device);
    device.memory.release_cached();
    if (Block* block = device.memory.take(bytes, stream)) return block;
  }
  ++device.memory.stats.num_ooms;
  const auto& stats = device.memory.stats;
  TORCH_CHECK_WITH(OutOfMemoryError, false, "standin out of memory. Tried to allocate ", bytes, " bytes. standin:",
                   device.index, " has ", settings.memory_bytes, " bytes, of which ",
                   settings.memory_bytes - card.used(device.index), " are free. This process holds ",
                   card.held_here(device.index), " bytes; torch has allocated ", stats.allocated_bytes[0].current,
                   " of the ", stats.reserved_bytes[0].current, " that it has reserved.");
}

inline Block* allocate(Device& device, size_t bytes) {
  const Hold held;
  enter(device);
  return take_or_throw(device, bytes);
}

// The deleter of a tensor's memory: never throws.
inline void release(void* context) {
  if (in_bad_fork) return;  // the parent's
  auto* block = static_cast<Block*>(context);
  const Hold held;
  Device& device = *devices[block->device];
  device.memory.count_freed(*block);
  FreedLater freed{0, block, {}};
  for (const int id : block->recorded_on) {
    Stream& stream = stream_at(device, id);
    freed.when_s = std::max(freed.when_s, stream.ready_s);
    freed.over.push_back({stream.number, stream.knows.latest(stream.number)});
  }
  if (freed.when_s > now_s()) device.freed_later.push_back(std::move(freed));
  else put_back(device, freed);
}

struct Allocator final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t bytes) override {
    Device& device = *devices[current_device];
    const c10::Device on(TYPE, static_cast<c10::DeviceIndex>(device.index));
    if (bytes == 0) return {nullptr, nullptr, [](void*) {}, on};
    Block* block = standin::allocate(device, bytes);
    return {device.memory.address_of(*block), block, &release, on};
  }

  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }

  void copy_data(void*, const void*, size_t) const override {
    TORCH_CHECK(false, "standin: copy tensors, not storages' bytes");
  }

  bool initialized() override { return true; }

  void emptyCache(c10::MempoolId_t) override {
    for (const auto& device : devices) {
      if (!device->has_context) continue;
      synchronize(*device);
      const Hold held;
      device->memory.release_cached();
    }
  }

  void recordStream(const c10::DataPtr& pointer, c10::Stream stream) override {
    const Hold held;
    const Device* device = device_of_address(pointer.get());
    Block* block = device == nullptr ? nullptr : device->memory.find(pointer.get());
    const int id = static_cast<int>(stream.id());
    if (block != nullptr && id != block->stream) block->recorded_on.push_back(id);
  }

  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex index) override {
    const Hold held;
    return device_at(index).memory.stats;
  }

  void resetAccumulatedStats(c10::DeviceIndex index) override {
    const Hold held;
    for (auto* array : all_of(device_at(index).memory.stats))
      for (auto& stat : *array) stat.reset_accumulated();
  }

  void resetPeakStats(c10::DeviceIndex index) override {
    const Hold held;
    for (auto* array : all_of(device_at(index).memory.stats))
      for (auto& stat : *array) stat.reset_peak();
  }

  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex index) override {
    const Hold held;
    Device& device = device_at(index);
    enter(device);
    const int64_t free = std::max<int64_t>(0, settings.memory_bytes - card.used(device.index));
    return {static_cast<size_t>(free), static_cast<size_t>(settings.memory_bytes)};
  }

 private:
  static std::array<c10::CachingAllocator::StatArray*, 6> all_of(c10::CachingDeviceAllocator::DeviceStats& stats) {
    return {&stats.allocation,      &stats.segment,        &stats.active,
            &stats.allocated_bytes, &stats.reserved_bytes, &stats.active_bytes};
  }
};

inline auto& allocator = *new Allocator();

}  // namespace standin
