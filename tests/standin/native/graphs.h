// Graphs: launches that are recorded once, with the addresses of what they read and write, and start as one.
//
// While a thread records nothing is computed, and it may not wait. A replay computes when it is launched, like any
// kernel. Memory that is taken meanwhile is of the graph's pool, which nothing else is given while a graph has it.
#pragma once

#include <ATen/core/GraphImplInterface.h>

#include "mirror.h"

namespace standin {

// One launch. `compute` returns why it failed: empty where it did not.
struct RecordedLaunch {
  std::function<std::string()> compute;
  std::vector<const void*> read, written;
  int64_t bytes = 0;
};

// The device's tensor without its memory's owner: a graph holds addresses.
inline at::Tensor without_owner(const at::Tensor& tensor) { return Mirror().twin(tensor); }

struct Graph final : at::GraphImplInterface {
  explicit Graph(const at::GraphImplArgs& = {}) {}
  ~Graph() override { reset(); }

  void capture_begin(c10::MempoolId_t pool, at::GraphCaptureMode) override {
    const Hold held;
    TORCH_CHECK(recording == nullptr && device_ == nullptr, "standin: a graph records once, and one at a time");
    Device& device = device_at(current_device);
    TORCH_CHECK(current_stream[device.index] != 0, "standin graphs must be captured on a non-default stream");
    enter(device);
    device_ = &device;
    pool_ = pool.first == 0 ? ++pools_given : static_cast<int>(pool.first);
    device.memory.keep_pool(pool_stream(pool_));
    recording = &state_;
    state_ = {pool_stream(pool_), false, [this](RecordedLaunch launch) { launches_.push_back(std::move(launch)); }};
  }

  void capture_end() override {
    const Hold held;
    TORCH_CHECK(recording == &state_, "standin: this thread does not record this graph");
    recording = nullptr;
    if (state_.broken) {
      reset();
      raise_in_recording("operation failed due to a previous error during capture");
    }
    ended_ = true;
  }

  void instantiate() override {}

  void replay() override {
    const Hold held;
    refuse_while_recording();
    TORCH_CHECK(ended_, "standin: replay of a graph that was not recorded");
    enter(*device_);
    Launch launch(*device_, "graph");
    std::string failure;
    double bytes = 0;
    for (const RecordedLaunch& one : launches_) {
      declare(launch, one);
      bytes += static_cast<double>(one.bytes);
      if (failure.empty()) failure = one.compute();
    }
    ++device_->counters.launches;
    const double end_s = launch.ends_after(kernel_s(static_cast<int64_t>(bytes)));
    const std::string injected = std::exchange(next_kernel.fault, "");
    if (failure.empty()) failure = injected;
    if (!failure.empty()) fail_at(end_s, failure);
  }

  void reset() override {
    if (in_bad_fork || device_ == nullptr) return;
    const Hold held;
    if (recording == &state_) recording = nullptr;
    launches_.clear();
    device_->memory.drop_pool(pool_stream(pool_));
    device_ = nullptr;
    ended_ = false;
  }

  c10::MempoolId_t pool() const override { return {pool_, 0}; }
  void enable_debug_mode() override {}
  void debug_dump(const std::string&) override { TORCH_CHECK(false, "standin: graphs are not written to files"); }

 private:
  // Blocks of a pool have a stream of their own, so that no other request fits them.
  static int pool_stream(int pool) { return MAX_STREAMS + pool; }

  void declare(Launch& launch, const RecordedLaunch& one) const {
    for (const void* address : one.read) if (Block* block = live(address)) launch.reads(*block);
    for (const void* address : one.written) if (Block* block = live(address)) launch.writes(*block);
  }

  // The block at an address; nullptr in what the graph itself uses again, as tensors that it freed were there.
  Block* live(const void* address) const {
    if (address == nullptr) return nullptr;
    if (Block* block = device_->memory.find(address)) return block;
    if (!device_->memory.is_cached_for(address, pool_stream(pool_)))
      report_race("a graph was started whose memory has been freed");
    return nullptr;
  }

  static inline int pools_given = 0;

  Device* device_ = nullptr;
  int pool_ = 0;
  bool ended_ = false;
  Recording state_;
  std::vector<RecordedLaunch> launches_;
};

}  // namespace standin
