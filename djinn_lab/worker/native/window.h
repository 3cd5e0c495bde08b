// Nodes whose calls have returned while an accelerator may still compute them.
#pragma once

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <utility>
#include <vector>

namespace djinn {

// A call of a GPU only asks for its op: that it ended, how long it took and whether it failed is known later. Waiting
// after each would cost more than most ops take. So an event ends each group of launches; two groups may be under way
// beside the one that is being filled, and a group grows as long as it takes little time. What a stop has to wait for
// is bounded so: by three groups of GROUP_S, or by one op that takes longer.
class Window {
 public:
  // `retired`: called with the first and the last but one node of a group that has ended, and how many of these were
  // launches. `one_by_one`: every node is waited for.
  Window(c10::Device device, int64_t executed, bool one_by_one, std::function<void(int64_t, int64_t)> retired)
      : device_(device), one_by_one_(one_by_one), retired_(executed), first_(executed), on_retired_(std::move(retired)) {}

  // A node was asked for; `launches`: it is more than a view. Waits where too many are under way.
  void add(bool launches, double now_s) {
    ++count_;
    launches_ += launches ? 1 : 0;
    if (one_by_one_) {
      settle();
    } else if (launches_ >= launches_max_ || (launches_ > 0 && now_s - began_s_ > GROUP_S)) {
      close(now_s);
    }
  }

  // Wait for everything that is under way. Raises what the device says is wrong with it.
  void settle() {
    if (faulted_ || (count_ == 0 && groups_.empty())) return;
    try {
      const c10::impl::VirtualGuardImpl guard(device_.type());
      guard.synchronizeStream(guard.getStream(device_));
    } catch (...) {
      faulted_ = true;
      throw;
    }
    while (!groups_.empty()) retire_oldest();
    retire(first_ + count_);
    count_ = launches_ = 0;
  }

  // Nodes before this one have ended.
  int64_t retired() const { return retired_; }
  bool faulted() const { return faulted_; }

 private:
  static constexpr int64_t LAUNCHES_MAX = 64;
  static constexpr size_t GROUPS_MAX = 2;
  static constexpr double GROUP_S = 5e-3;

  struct Group {
    c10::Event event;
    int64_t end;
  };

  static double clock_s() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }

  void close(double now_s) {
    try {
      c10::Event event = take_event();
      const c10::impl::VirtualGuardImpl guard(device_.type());
      event.record(guard.getStream(device_));
      groups_.push_back({std::move(event), first_ + count_});
      first_ += count_;
      count_ = launches_ = 0;
      began_s_ = now_s;
      while (!groups_.empty() && (groups_.size() > GROUPS_MAX || groups_.front().event.query())) {
        groups_.front().event.synchronize();
        note_duration();
        retire_oldest();
      }
    } catch (...) {
      faulted_ = true;
      throw;
    }
  }

  // Groups of launches that the device works off quickly may be larger.
  void note_duration() {
    const double now_s = clock_s(), took_s = now_s - last_retired_s_;
    last_retired_s_ = now_s;
    if (took_s < GROUP_S / 2) {
      launches_max_ = std::min(LAUNCHES_MAX, 2 * launches_max_);
    } else if (took_s > GROUP_S) {
      launches_max_ = std::max<int64_t>(1, launches_max_ / 2);
    }
  }

  void retire_oldest() {
    retire(groups_.front().end);
    free_.push_back(std::move(groups_.front().event));
    groups_.pop_front();
  }

  void retire(int64_t end) {
    const int64_t begin = retired_;
    retired_ = end;
    first_ = std::max(first_, end);
    if (end > begin) on_retired_(begin, end);
  }

  c10::Event take_event() {
    if (free_.empty()) return c10::Event(device_.type());
    c10::Event event = std::move(free_.back());
    free_.pop_back();
    return event;
  }

  const c10::Device device_;
  const bool one_by_one_;
  int64_t retired_, first_;  // first_: of the group that is being filled
  int64_t count_ = 0, launches_ = 0, launches_max_ = 1;
  double began_s_ = 0, last_retired_s_ = 0;
  bool faulted_ = false;
  const std::function<void(int64_t, int64_t)> on_retired_;
  std::deque<Group> groups_;
  std::vector<c10::Event> free_;
};

}  // namespace djinn
