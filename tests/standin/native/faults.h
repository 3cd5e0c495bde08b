// Faults come late and stay: once a kernel that failed has ended, every call of the process raises.
#pragma once

#include <c10/util/Exception.h>

#include <atomic>
#include <cmath>
#include <mutex>
#include <string>

#include "clock.h"
#include "reports.h"

namespace standin {

// CUDA's number for an illegal address, an assertion and their like is 710, and for a call that cannot be recorded 900;
// nothing reads them but a person.
constexpr int FAULT_CODE = 710, CAPTURE_CODE = 900;

struct Fault {
  std::atomic<double> at_s{INFINITY};
  std::mutex text_lock;  // not the device's: a thread that waits for a kernel holds that while it asks for memory
  std::string text;
};

inline Fault fault;

// Of the next kernel, once.
struct Injected {
  std::string fault;   // empty: it does not fail
  double seconds = -1; // negative: as long as its bytes take; infinity: it never ends
};

inline Injected next_kernel;

inline void fail_at(double time_s, const std::string& text) {
  const std::lock_guard<std::mutex> held(fault.text_lock);
  if (time_s >= fault.at_s) return;
  fault.text = text;
  fault.at_s = time_s;
  append_to_log("fault: " + text);
}

inline void raise_if_faulted() {
  if (fault.at_s > now_s()) return;
  const std::lock_guard<std::mutex> held(fault.text_lock);
  const c10::SourceLocation here = {__func__, __FILE__, static_cast<uint32_t>(__LINE__)};
  throw c10::AcceleratorError(here, FAULT_CODE, "standin error: " + fault.text);
}

}  // namespace standin
