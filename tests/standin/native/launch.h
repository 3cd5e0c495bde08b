// A launch on the current stream: what it touches, and when it ends.
#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>

#include "device.h"

namespace standin {

inline Block* block_of(const at::Tensor& tensor) {
  const void* address = tensor.storage().data();
  Device* device = device_of_address(address);
  return device == nullptr ? nullptr : device->memory.find(address);
}

class Launch {
 public:
  // `name` outlives the launch.
  Launch(Device& device, std::string_view name) : device_(device), stream_(current_stream_of(device)), name_(name) {
    stream_.knows.learn(host_knows);
    access_ = stream_.knows.count_launch(stream_.number);
  }

  void reads(const at::Tensor& tensor) {
    if (Block* block = block_of(tensor)) reads(*block);
  }
  void reads(Block& block) {
    check(block.written, "reads what", "may not have written yet");
    block.add_use(access_);
  }

  void writes(const at::Tensor& tensor) {
    if (Block* block = block_of(tensor)) writes(*block);
  }

  void writes(Block& block) {
    check(block.written, "writes what", "may not have written yet");
    for (const Access& use : block.used) check(use, "writes what", "may still use");
    block.used.clear();
    block.written = access_;
  }

  // Ends after the time on the stream and, for a copy, on a lane of the link.
  double ends_after(double seconds, double* lane_ready_s = nullptr) {
    double begin_s = std::max(stream_.ready_s, now_s());
    if (lane_ready_s != nullptr) begin_s = std::max(begin_s, *lane_ready_s);
    stream_.ready_s = begin_s + seconds;
    if (lane_ready_s != nullptr) *lane_ready_s = stream_.ready_s;
    return stream_.ready_s;
  }

  Stream& stream() const { return stream_; }

 private:
  void check(const Access& access, const char* does, const char* may) const {
    if (stream_.knows.includes(access)) return;
    report_race(std::string(name_) + " on stream " + std::to_string(stream_.number) + " of standin:" + std::to_string(device_.index) +
                " " + does + " stream " + std::to_string(access.stream) + " " + may);
  }

  Device& device_;
  Stream& stream_;
  std::string_view name_;
  Access access_;
};

// How long a kernel takes, or what a test said that the next one takes.
inline double kernel_s(int64_t bytes) {
  if (next_kernel.seconds >= 0) return std::exchange(next_kernel.seconds, -1);
  return std::max(settings.launch_s, static_cast<double>(bytes) / settings.kernel_bytes_per_s);
}

}  // namespace standin
