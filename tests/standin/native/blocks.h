// One device's memory: segments claimed from the card, cut into blocks, which stay here after they were freed.
//
// The rules are those of torch's allocator for CUDA: small requests share segments of 2 MiB, others of up to 10 MiB
// segments of 20 MiB, larger ones have their own; best fit among what one stream has freed; neighbours are joined.
//
// A tensor's data_ptr lies in a range without rights, so that the host cannot read it. The bytes lie at the same offset
// of a second range, for the CPU's kernels alone.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>
#include <sys/mman.h>

#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

#include "address_space.h"
#include "card.h"
#include "order.h"

namespace standin {

constexpr size_t MIB = size_t{1} << 20;
constexpr size_t ROUNDED_TO = 512, SMALL_REQUEST = MIB, SMALL_SEGMENT = 2 * MIB;
constexpr size_t MIDDLE_REQUEST = 10 * MIB, MIDDLE_SEGMENT = 20 * MIB, LARGE_ROUNDED_TO = 2 * MIB;
constexpr size_t ADDRESSES = size_t{1} << 37;
// Of new memory: as a float -2.6e36, as an index far out of every range.
constexpr uint8_t POISON = 0xFB;

struct Block {
  int device = 0;
  int stream = 0;  // the device's stream that it is kept for
  bool small = false, free = true;
  size_t offset = 0, size = 0;
  size_t segment = 0, segment_size = 0;
  Access written;                // the last launch that did
  std::vector<Access> used;      // launches since, the last of each stream
  std::vector<int> recorded_on;  // streams that record_stream named

  void add_use(const Access& access) {
    if (access.stream < 0) return;
    for (Access& known : used) {
      if (known.stream != access.stream) continue;
      known = access;
      return;
    }
    used.push_back(access);
  }
};

class DeviceMemory {
 public:
  explicit DeviceMemory(int device) : device_(device) {}

  void open() {
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    address_ = static_cast<uint8_t*>(::mmap(nullptr, ADDRESSES, PROT_NONE, flags, -1, 0));
    bytes_ = static_cast<uint8_t*>(::mmap(nullptr, ADDRESSES, PROT_NONE, flags, -1, 0));
    TORCH_CHECK(address_ != MAP_FAILED && bytes_ != MAP_FAILED, "standin: no address space for a device");
  }

  bool contains(const void* address) const {
    return address_ != nullptr && address >= address_ && address < address_ + ADDRESSES;
  }
  uint8_t* bytes_at(const void* address) const { return bytes_ + (static_cast<const uint8_t*>(address) - address_); }
  void* address_of(const Block& block) const { return address_ + block.offset; }

  // The block that an address points into. By address: a pointer may have been wrapped in another storage.
  Block* find(const void* address) const {
    const size_t offset = static_cast<const uint8_t*>(address) - address_;
    const auto after = blocks_.upper_bound(offset);
    if (after == blocks_.begin()) return nullptr;
    Block* block = std::prev(after)->second.get();
    return !block->free && offset < block->offset + block->size ? block : nullptr;
  }

  // Whether an address lies in freed memory that is kept for this stream.
  bool is_cached_for(const void* address, int stream) const {
    const auto after = blocks_.upper_bound(static_cast<const uint8_t*>(address) - address_);
    return after != blocks_.begin() && std::prev(after)->second->stream == stream;
  }

  // What is freed on the stream stays reserved until as many drop it.
  void keep_pool(int stream) { ++pools_[stream]; }
  void drop_pool(int stream) {
    if (--pools_[stream] == 0) pools_.erase(stream);
  }

  // Returns nullptr where neither the cache nor the card has the bytes.
  Block* take(size_t bytes, int stream) {
    const size_t size = (bytes + ROUNDED_TO - 1) / ROUNDED_TO * ROUNDED_TO;
    Block* block = best_fit(size, stream);
    if (block == nullptr) block = new_segment(size, stream);
    if (block == nullptr) return nullptr;
    cached_.erase(block);
    split(*block, size);
    block->free = false;
    count(stats.allocation, *block, 1);
    count(stats.active, *block, 1);
    count(stats.allocated_bytes, *block, static_cast<int64_t>(block->size));
    count(stats.active_bytes, *block, static_cast<int64_t>(block->size));
    std::memset(bytes_ + block->offset, POISON, bytes);
    return block;
  }

  // The tensor is gone; its memory may still be in use on other streams.
  void count_freed(const Block& block) {
    count(stats.allocation, block, -1);
    count(stats.allocated_bytes, block, -static_cast<int64_t>(block.size));
  }

  // Into the cache. What other streams did with the block stays known: nothing orders its next use after that.
  void put_back(Block* block, int own_stream_number) {
    count(stats.active, *block, -1);
    count(stats.active_bytes, *block, -static_cast<int64_t>(block->size));
    block->add_use(block->written);
    block->written = {};
    std::erase_if(block->used, [&](const Access& use) { return use.stream == own_stream_number; });
    block->recorded_on.clear();
    block->free = true;
    cached_.insert(join_with_neighbours(block));
  }

  // Gives segments without a live block back to the card, and of the others the pages that no live block has (as
  // torch's does with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True).
  void release_cached() {
    release_segments();
    const std::vector<Block*> kept(cached_.begin(), cached_.end());
    for (Block* block : kept)
      if (!block->small && pools_.count(block->stream) == 0) release_pages(block);
  }

  c10::CachingDeviceAllocator::DeviceStats stats{};
  int64_t limit_bytes = std::numeric_limits<int64_t>::max();  // of what this process reserves

 private:
  void release_segments() {
    for (auto it = cached_.begin(); it != cached_.end();) {
      const Block* block = *it;
      if (block->size != block->segment_size || pools_.count(block->stream) != 0) {
        ++it;
        continue;
      }
      it = cached_.erase(it);
      ::madvise(bytes_ + block->offset, block->size, MADV_DONTNEED);
      ::mprotect(bytes_ + block->offset, block->size, PROT_NONE);
      card.give_back(device_, static_cast<int64_t>(block->size));
      count(stats.segment, *block, -1);
      count(stats.reserved_bytes, *block, -static_cast<int64_t>(block->size));
      ++stats.num_device_free;
      addresses_.give_back(block->offset, block->size);
      blocks_.erase(block->offset);
    }
  }

  // What is left of the segment before and behind the pages is a segment of its own from then on.
  void release_pages(Block* block) {
    const size_t begin = (block->offset + LARGE_ROUNDED_TO - 1) / LARGE_ROUNDED_TO * LARGE_ROUNDED_TO;
    const size_t block_end = block->offset + block->size;
    const size_t end = block_end / LARGE_ROUNDED_TO * LARGE_ROUNDED_TO;
    if (begin >= end) return;
    const size_t segment = block->segment, segment_end = segment + block->segment_size;
    cached_.erase(block);
    if (block_end > end) {
      auto behind = std::make_unique<Block>(*block);
      behind->offset = end, behind->size = block_end - end;
      cached_.insert(behind.get());
      blocks_[end] = std::move(behind);
    }
    count(stats.reserved_bytes, *block, -static_cast<int64_t>(end - begin));
    if (block->offset < begin) {
      block->size = begin - block->offset;
      cached_.insert(block);
    } else {
      blocks_.erase(block->offset);
    }
    for (auto it = blocks_.lower_bound(segment); it != blocks_.end() && it->first < segment_end; ++it) {
      Block& other = *it->second;
      other.segment = other.offset < begin ? segment : end;
      other.segment_size = other.offset < begin ? begin - segment : segment_end - end;
    }
    ::madvise(bytes_ + begin, end - begin, MADV_DONTNEED);
    ::mprotect(bytes_ + begin, end - begin, PROT_NONE);
    card.give_back(device_, static_cast<int64_t>(end - begin));
    ++stats.num_device_free;
    addresses_.give_back(begin, end - begin);
  }

  static auto key(const Block* block) { return std::tuple(block->small, block->stream, block->size, block->offset); }
  struct ByFit {
    bool operator()(const Block* a, const Block* b) const { return key(a) < key(b); }
  };

  Block* best_fit(size_t size, int stream) {
    Block wanted;
    wanted.small = size <= SMALL_REQUEST, wanted.stream = stream, wanted.size = size;
    const auto found = cached_.lower_bound(&wanted);
    if (found == cached_.end() || (*found)->small != wanted.small || (*found)->stream != stream) return nullptr;
    return *found;
  }

  Block* new_segment(size_t size, int stream) {
    const bool small = size <= SMALL_REQUEST;
    const size_t whole = small                    ? SMALL_SEGMENT
                         : size < MIDDLE_REQUEST ? MIDDLE_SEGMENT
                                                  : (size + LARGE_ROUNDED_TO - 1) / LARGE_ROUNDED_TO * LARGE_ROUNDED_TO;
    const int64_t reserved = stats.reserved_bytes[0].current;
    if (reserved + static_cast<int64_t>(whole) > limit_bytes) return nullptr;
    if (!card.claim(device_, static_cast<int64_t>(whole))) return nullptr;
    auto block = std::make_unique<Block>();
    block->device = device_, block->stream = stream, block->small = small;
    block->offset = block->segment = addresses_.take(whole);
    block->size = block->segment_size = whole;
    TORCH_CHECK(::mprotect(bytes_ + block->offset, whole, PROT_READ | PROT_WRITE) == 0, "standin: host memory is full");
    count(stats.segment, *block, 1);
    count(stats.reserved_bytes, *block, static_cast<int64_t>(whole));
    ++stats.num_device_alloc;
    return (blocks_[block->offset] = std::move(block)).get();
  }

  void split(Block& block, size_t size) {
    const size_t left = block.size - size;
    if (block.small ? left < ROUNDED_TO : left <= SMALL_REQUEST) return;
    auto rest = std::make_unique<Block>(block);
    rest->offset += size;
    rest->size = left;
    block.size = size;
    cached_.insert(rest.get());
    blocks_[rest->offset] = std::move(rest);
  }

  Block* join_with_neighbours(Block* block) {
    const auto after = blocks_.find(block->offset + block->size);
    if (after != blocks_.end() && can_join(*block, *after->second)) join(*block, after->second.get());
    const auto here = blocks_.find(block->offset);
    if (here == blocks_.begin()) return block;
    Block* before = std::prev(here)->second.get();
    if (!can_join(*before, *block)) return block;
    cached_.erase(before);
    join(*before, block);
    return before;
  }

  static bool can_join(const Block& one, const Block& next) {
    return one.free && next.free && one.segment == next.segment && one.offset + one.size == next.offset;
  }

  void join(Block& into, Block* next) {
    cached_.erase(next);
    into.size += next->size;
    for (const Access& use : next->used) into.add_use(use);
    blocks_.erase(next->offset);
  }

  static void count(c10::CachingAllocator::StatArray& array, const Block& block, int64_t by) {
    using c10::CachingAllocator::StatType;
    const StatType pool = block.small ? StatType::SMALL_POOL : StatType::LARGE_POOL;
    for (const StatType type : {StatType::AGGREGATE, pool}) {
      auto& stat = array[static_cast<size_t>(type)];
      if (by >= 0) stat.increase(static_cast<size_t>(by));
      else stat.decrease(static_cast<size_t>(-by));
    }
  }

  int device_;
  uint8_t *address_ = nullptr, *bytes_ = nullptr;
  AddressSpace addresses_{ADDRESSES};
  std::map<size_t, std::unique_ptr<Block>> blocks_;  // by offset
  std::set<Block*, ByFit> cached_;
  std::map<int, int> pools_;  // streams whose freed memory is kept -> how many graphs do
};

}  // namespace standin
