// The time that devices and host agree on, in seconds: the real one, or one that a test can reason about.
//
// The manual clock moves only when the host waits (to the end of what it waits for) or asks whether something has
// ended (a microsecond, so that a loop that polls comes to an end). Then only what the host waits for retires.
#pragma once

#include <atomic>
#include <chrono>

#include "settings.h"

namespace standin {

inline std::atomic<double> manual_s{0};

inline double now_s() {
  if (settings.manual) return manual_s;
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

inline void move_clock_to(double time_s) {
  double seen = manual_s;
  while (seen < time_s && !manual_s.compare_exchange_weak(seen, time_s)) {
  }
}

inline void move_clock_for_question() {
  if (settings.manual) move_clock_to(manual_s + 1e-6);
}

}  // namespace standin
