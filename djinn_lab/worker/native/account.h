// What the thread that runs programs shares with threads that copy: counts and marks, readable without the GIL.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>

namespace djinn {

// The counts of a MemoryAccount (djinn_lab/worker/memory_account.py explains the protocol). `own` is written
// by one thread only; every store that the other side must see before the next load is sequentially consistent.
class Account {
 public:
  explicit Account(int64_t limit_bytes) : limit_(limit_bytes) {}

  int64_t used_bytes() const { return own_.load() + other_.load(); }
  int64_t peak_bytes() const { return std::max(own_peak_.load(), other_peak_.load()); }

  void start_peak() {
    const int64_t used = used_bytes();
    own_peak_ = used;
    other_peak_ = used;
  }

  void add(int64_t nbytes) {
    own_.store(own_.load(std::memory_order_relaxed) + nbytes);
    mark_peak();
  }

  void mark_peak() {
    const int64_t used = used_bytes();
    if (used > own_peak_.load(std::memory_order_relaxed)) own_peak_.store(used, std::memory_order_relaxed);
  }

  // -1 when the bytes were taken, else how many bytes are in use, which leave too few.
  int64_t reserve(int64_t nbytes) {
    own_.store(own_.load(std::memory_order_relaxed) + nbytes);
    const int64_t claimed = claimed_.load();
    if (claimed + own_.load() + other_.load() <= limit_) return -1;
    const std::lock_guard<std::mutex> held(lock_);
    const int64_t used = own_.load() + other_.load() - nbytes;
    if (used + nbytes <= limit_) return -1;
    own_.store(own_.load() - nbytes);
    return used;
  }

  void settle(int64_t reserved, int64_t used) { add(used - reserved); }

  void release(int64_t nbytes) { own_.store(own_.load(std::memory_order_relaxed) - nbytes, std::memory_order_release); }

  bool reserve_other(int64_t nbytes) {
    const std::lock_guard<std::mutex> held(lock_);
    claimed_ = nbytes;
    const int64_t used = own_.load() + other_.load() + nbytes;
    const bool fits = used <= limit_;
    if (fits) {
      other_ += nbytes;
      other_peak_ = std::max(other_peak_.load(), used);
    }
    claimed_ = 0;
    return fits;
  }

  void release_other(int64_t nbytes) {
    const std::lock_guard<std::mutex> held(lock_);
    other_ -= nbytes;
  }

 private:
  const int64_t limit_;
  std::atomic<int64_t> own_{0}, other_{0}, claimed_{0}, own_peak_{0}, other_peak_{0};
  std::mutex lock_;
};

// The part of a Storage (djinn_lab/worker/storages.py) that an op looks at.
struct Marks {
  std::atomic<int64_t> version{0};
  std::atomic<bool> writing{false}, reading{false}, arriving{false}, tracked{false};
  int32_t entry = -1;  // its number in the run `run`
  uint64_t run = 0;
};

}  // namespace djinn
