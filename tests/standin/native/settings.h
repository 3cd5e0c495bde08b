// What a test chose: the devices, their memory, their speed. Fixed once a device has been used.
#pragma once

#include <cstdint>
#include <string>

namespace standin {

constexpr int MAX_DEVICES = 8;

struct Settings {
  int devices = 1;
  int64_t memory_bytes = int64_t{1} << 30;   // of each device
  int64_t context_bytes = int64_t{64} << 20; // that a process's first use of a device costs
  double launch_s = 3e-6;                    // of a kernel, at least
  double kernel_bytes_per_s = 20e9;          // of a kernel's operands and results
  double link_bytes_per_s = 2e9;             // of each direction, pinned memory; pageable memory gets half
  bool manual = false;                       // the clock moves only when the host waits or asks
  bool host_random = true;                   // draw from the CPU's default generator, as the CPU's device does
  std::string log;                           // races and faults are appended to this file; empty: to none
  std::string card;                          // the file that all processes share; empty: a card of this process's own
};

inline Settings settings;

}  // namespace standin
