// The card: what all processes hold of each device's memory. A file with one slot a process.
//
// A process owns its slot by a POSIX lock on one byte of the file. The lock ends with the process, however it ends, so
// what a dead process held counts as free, and pids (reused, or of another namespace) do not matter.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <new>

#include <c10/util/Exception.h>

#include "settings.h"

namespace standin {

class Card {
 public:
  // Claims `bytes` of a device for this process; false when the device does not have them.
  bool claim(int device, int64_t bytes) {
    open();
    mine_->bytes[device] += bytes;
    if (used(device) <= settings.memory_bytes) return true;
    mine_->bytes[device] -= bytes;
    return false;
  }

  void give_back(int device, int64_t bytes) { mine_->bytes[device] -= bytes; }

  int64_t held_here(int device) const { return mine_ == nullptr ? 0 : mine_->bytes[device].load(); }

  int64_t used(int device) {
    open();
    int64_t sum = 0;
    for (int index = 0; index < slot_count_; ++index) {
      const int64_t bytes = slots_[index].bytes[device];
      if (bytes != 0 && (&slots_[index] == mine_ || is_owned(index))) sum += bytes;
    }
    return sum;
  }

 private:
  struct Slot {
    std::array<std::atomic<int64_t>, MAX_DEVICES> bytes;
  };
  static constexpr int SLOTS = 256;

  void open() {
    if (mine_ != nullptr) return;
    if (settings.card.empty()) {
      slots_ = mine_ = new Slot();
      slot_count_ = 1;
      return;
    }
    file_ = ::open(settings.card.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    TORCH_CHECK(file_ >= 0 && ::ftruncate(file_, sizeof(Slot) * SLOTS) == 0, "standin: no card file ", settings.card);
    void* mapped = ::mmap(nullptr, sizeof(Slot) * SLOTS, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
    TORCH_CHECK(mapped != MAP_FAILED, "standin: the card file ", settings.card, " cannot be mapped");
    slots_ = static_cast<Slot*>(mapped);
    slot_count_ = SLOTS;
    for (int index = 0; index < SLOTS; ++index) {
      struct flock region = byte_of(index);
      if (::fcntl(file_, F_SETLK, &region) != 0) continue;  // another live process's
      mine_ = &slots_[index];
      for (auto& bytes : mine_->bytes) bytes = 0;
      return;
    }
    TORCH_CHECK(false, "standin: all ", SLOTS, " slots of the card ", settings.card, " are taken");
  }

  bool is_owned(int index) const {
    struct flock region = byte_of(index);
    return ::fcntl(file_, F_GETLK, &region) == 0 && region.l_type != F_UNLCK;
  }

  static struct flock byte_of(int index) {
    struct flock region = {};
    region.l_type = F_WRLCK;
    region.l_whence = SEEK_SET;
    region.l_start = index;
    region.l_len = 1;
    return region;
  }

  int file_ = -1;  // open as long as the process lives: closing it would drop the lock
  int slot_count_ = 0;
  Slot* slots_ = nullptr;
  Slot* mine_ = nullptr;
};

inline Card card;

}  // namespace standin
