// Memory of a worker's CPU tensors.
//
// glibc's heap grows with use where large tensors come and go: posix_memalign cannot take the hole that an equal tensor
// left, since it looks for more than it needs (fixed in glibc 2.38), and what was freed under a block that is in use is
// not returned. Returning every block at once is no way out either: the kernel fills a page with zeros at its first use,
// which costs more than most ops. So large blocks are mapped one by one, in classes of size (eight to a doubling, as
// jemalloc has), and some of those that were freed are kept for the next tensor of their class, up to a bound.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <malloc.h>
#include <sys/mman.h>

#include <atomic>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <unordered_map>

namespace djinn {

class TensorHeap final : public c10::Allocator {
 public:
  static TensorHeap& instance() {
    static auto* heap = new TensorHeap;  // tensors may outlive static objects
    return *heap;
  }

  // From now on, new CPU tensors lie here. Of freed blocks `kept_bytes_max` are kept.
  void install(int64_t kept_bytes_max) {
    kept_bytes_max_ = kept_bytes_max;
    c10::SetCPUAllocator(this, 1);
  }

  c10::DataPtr allocate(size_t nbytes) override {
    void* data = nbytes < LARGE_BYTES ? small(nbytes) : large(class_of(nbytes));
    return {data, data, &TensorHeap::free, c10::Device(c10::kCPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &TensorHeap::free; }
  void copy_data(void* to, const void* from, size_t count) const override { default_copy_data(to, from, count); }

  // Returns the memory of freed blocks to the system, and what malloc can return.
  void trim() {
    {
      const std::lock_guard<std::mutex> held(lock_);
      shrink(0);
    }
    malloc_trim(0);
  }

  int64_t mapped_bytes() const { return mapped_bytes_; }
  int64_t kept_bytes() const { return kept_bytes_; }
  // What malloc has from the system, in use or not.
  static int64_t malloc_bytes() {
    const struct mallinfo2 info = mallinfo2();
    return static_cast<int64_t>(info.arena + info.hblkhd);
  }

 private:
  static constexpr size_t LARGE_BYTES = size_t{1} << 20, PAGE = 4096, HUGE_PAGE = size_t{2} << 20, ALIGNMENT = 64;

  struct Block {
    void* data;
    size_t nbytes;
  };

  static size_t class_of(size_t nbytes) {
    const size_t step = std::bit_floor(nbytes) / 8;
    return (nbytes + step - 1) / step * step;
  }

  // Below the block lies the address that malloc returned. So malloc may take any hole that is large enough.
  static void* small(size_t nbytes) {
    if (nbytes == 0) return nullptr;
    void* raw = std::malloc(nbytes + ALIGNMENT + sizeof(void*));
    if (raw == nullptr) {
      instance().trim();
      raw = std::malloc(nbytes + ALIGNMENT + sizeof(void*));
    }
    if (raw == nullptr) refuse(nbytes);
    const uintptr_t begin = (reinterpret_cast<uintptr_t>(raw) + sizeof(void*) + ALIGNMENT - 1) & ~(ALIGNMENT - 1);
    reinterpret_cast<void**>(begin)[-1] = raw;
    return reinterpret_cast<void*>(begin);
  }

  void* large(size_t nbytes) {
    const std::lock_guard<std::mutex> held(lock_);
    // The newest of its class: its pages are the likeliest to be in a cache of the processor.
    for (auto block = kept_.rbegin(); block != kept_.rend(); ++block) {
      if (block->nbytes != nbytes) continue;
      void* data = block->data;
      kept_.erase(std::next(block).base());
      kept_bytes_ -= static_cast<int64_t>(nbytes);
      in_use_[data] = nbytes;
      return data;
    }
    void* data = map(nbytes);
    if (data == MAP_FAILED) {
      shrink(0);
      malloc_trim(0);
      data = map(nbytes);
    }
    if (data == MAP_FAILED) refuse(nbytes);
    if (nbytes >= HUGE_PAGE) madvise(data, nbytes, MADV_HUGEPAGE);  // a hint: fewer faults where it is taken
    mapped_bytes_ += static_cast<int64_t>(nbytes);
    in_use_[data] = nbytes;
    return data;
  }

  static void* map(size_t nbytes) {
    return mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  }

  [[noreturn]] static void refuse(size_t nbytes) {
    TORCH_CHECK_WITH(OutOfMemoryError, false, "can't allocate memory: ", nbytes, " bytes");
  }

  static void free(void* data) {
    if (data == nullptr) return;
    if (reinterpret_cast<uintptr_t>(data) % PAGE != 0 || !instance().keep(data))
      std::free(reinterpret_cast<void**>(data)[-1]);
  }

  // Whether it was a large block, which is kept for now, or returned.
  bool keep(void* data) {
    const std::lock_guard<std::mutex> held(lock_);
    const auto found = in_use_.find(data);
    if (found == in_use_.end()) return false;
    const size_t nbytes = found->second;
    in_use_.erase(found);
    kept_.push_back({data, nbytes});
    kept_bytes_ += static_cast<int64_t>(nbytes);
    shrink(kept_bytes_max_);
    return true;
  }

  // Returns kept blocks, the oldest first, until they are at most `nbytes`. With the lock held.
  void shrink(int64_t nbytes) {
    while (kept_bytes_ > nbytes) {
      const Block oldest = kept_.front();
      if (munmap(oldest.data, oldest.nbytes) != 0) {  // it would leave more mappings than the system allows
        madvise(oldest.data, oldest.nbytes, MADV_DONTNEED);
        return;
      }
      kept_.pop_front();
      kept_bytes_ -= static_cast<int64_t>(oldest.nbytes);
      mapped_bytes_ -= static_cast<int64_t>(oldest.nbytes);
    }
  }

  std::mutex lock_;
  std::unordered_map<void*, size_t> in_use_;
  std::deque<Block> kept_;  // the oldest first
  std::atomic<int64_t> kept_bytes_max_{0}, mapped_bytes_{0}, kept_bytes_{0};
};

}  // namespace djinn
