// A device: its streams as time lines, and the host's way of learning what has ended on them.
//
// There are no threads. Values are computed at launch; every call first lets retire what has ended by now.
#pragma once

#include <ATen/Context.h>
#include <c10/core/DeviceType.h>
#include <pthread.h>

#include <array>
#include <deque>
#include <queue>
#include <thread>

#include "blocks.h"
#include "clock.h"
#include "faults.h"
#include "lock.h"
#include "order.h"

namespace standin {

constexpr auto TYPE = c10::DeviceType::PrivateUse1;
constexpr int MAX_STREAMS = 32;  // of a device; further ones share them, as CUDA's do

struct Stream {
  int number = 0;      // of all streams of the process
  double ready_s = 0;  // when all that was launched has ended
  Knowledge knows;
};

struct Event {
  int device = 0;
  double end_s = 0;
  Knowledge knows;
};

struct FreedLater {
  double when_s;
  Block* block;
  std::vector<Access> over;  // launches that have ended by then
};

struct Counters {
  int64_t launches = 0, views = 0, copies = 0, waits = 0;
};

struct RecordedLaunch;

// What a thread records a graph into (graphs.h): memory comes from `pool_stream`, launches go to `add`.
struct Recording {
  int pool_stream = 0;
  bool broken = false;
  std::function<void(RecordedLaunch)> add;
};
inline thread_local Recording* recording = nullptr;

[[noreturn]] inline void raise_in_recording(const char* text) {
  const c10::SourceLocation here = {__func__, __FILE__, static_cast<uint32_t>(__LINE__)};
  throw c10::AcceleratorError(here, CAPTURE_CODE, std::string("standin error: ") + text);
}

// What waits for the device cannot be recorded, and ends the recording.
inline void refuse_while_recording() {
  if (recording == nullptr) return;
  recording->broken = true;
  raise_in_recording("operation not permitted when stream is capturing");
}

struct Device {
  explicit Device(int number) : index(number), memory(number) {}

  int index;
  bool has_context = false;
  std::deque<Stream> streams;
  int streams_given = 0;
  double in_ready_s = 0, out_ready_s = 0;  // the lanes of the link
  DeviceMemory memory;
  std::vector<FreedLater> freed_later;
  Counters counters;
};

inline std::vector<std::unique_ptr<Device>> make_devices() {
  std::vector<std::unique_ptr<Device>> all;
  for (int i = 0; i < MAX_DEVICES; ++i) all.push_back(std::make_unique<Device>(i));
  return all;
}

inline auto& devices = *new std::vector<std::unique_ptr<Device>>(make_devices());
inline int stream_numbers_given = 0;
inline Knowledge host_knows;
inline thread_local int current_device = 0;
inline thread_local std::array<int, MAX_DEVICES> current_stream{};

inline Device& device_at(int index) { return *devices[index < 0 ? current_device : index]; }

// Also before the device's context, as torch makes stream objects before it uses them.
inline Stream& stream_at(Device& device, int id) {
  while (static_cast<int>(device.streams.size()) <= id) device.streams.push_back({stream_numbers_given++, 0, {}});
  return device.streams[id];
}
inline Stream& current_stream_of(Device& device) { return stream_at(device, current_stream[device.index]); }

inline Device* device_of_address(const void* address) {
  for (const auto& device : devices)
    if (device->memory.contains(address)) return device.get();
  return nullptr;
}

// --- what retires -----------------------------------------------------------------------------------------------

struct Retirement {
  double end_s;
  uint64_t order;
  std::function<void()> action;
  bool operator<(const Retirement& other) const {
    return std::tie(end_s, order) > std::tie(other.end_s, other.order);
  }
};

inline auto& retirements = *new std::priority_queue<Retirement>();
inline uint64_t retirements_queued = 0;

inline void at_end(double end_s, std::function<void()> action) {
  retirements.push({end_s, retirements_queued++, std::move(action)});
}

inline void put_back(Device& device, const FreedLater& freed) {
  freed.block->add_use(std::exchange(freed.block->written, {}));
  std::erase_if(freed.block->used, [&](const Access& use) {
    return std::any_of(freed.over.begin(), freed.over.end(), [&](const Access& over) {
      return over.stream == use.stream && over.at >= use.at;
    });
  });
  device.memory.put_back(freed.block, stream_at(device, freed.block->stream).number);
}

inline void retire_ended() {
  const double now = now_s();
  while (!retirements.empty() && retirements.top().end_s <= now) {
    std::function<void()> action = retirements.top().action;
    retirements.pop();
    action();
    retired.push_back(std::move(action));
  }
  for (const auto& device : devices) {
    std::vector<FreedLater> freed = std::exchange(device->freed_later, {});
    for (FreedLater& one : freed) {
      if (one.when_s <= now) put_back(*device, one);
      else device->freed_later.push_back(std::move(one));
    }
  }
}

// --- waiting ----------------------------------------------------------------------------------------------------

// Sleeps until the time, or until a fault that ends the wait. As on a GPU, no signal handler of Python's runs meanwhile.
inline void sleep_until(double end_s) {
  if (settings.manual && std::isfinite(std::min<double>(end_s, fault.at_s))) {
    return move_clock_to(std::min<double>(end_s, fault.at_s));
  }
  constexpr double LONGEST_S = 0.02, SPUN_S = 50e-6;
  const WithoutGil let_go;
  for (double now = now_s(); now < end_s && now < fault.at_s; now = now_s()) {
    const double left_s = std::min({end_s - now, fault.at_s - now, LONGEST_S});
    if (left_s > SPUN_S) std::this_thread::sleep_for(std::chrono::duration<double>(left_s - SPUN_S));
  }
}

// The host waits for the time, and knows then what `known` does. Raises the fault that was met.
inline void wait_until(Device& device, double end_s, const Knowledge& known) {
  refuse_while_recording();
  {
    const Hold held;
    ++device.counters.waits;
    retire_ended();
  }
  sleep_until(end_s);
  const Hold held;
  retire_ended();
  raise_if_faulted();
  host_knows.learn(known);
}

// Waits for all streams and both lanes of the link.
inline void synchronize(Device& device) {
  refuse_while_recording();
  double end_s = 0;
  Knowledge known;
  {
    const Hold held;
    if (!device.has_context) return;
    end_s = std::max(device.in_ready_s, device.out_ready_s);
    for (const Stream& stream : device.streams) {
      end_s = std::max(end_s, stream.ready_s);
      known.learn(stream.knows);
    }
  }
  wait_until(device, end_s, known);
}

// Whether the time has come; the host has learnt so then.
inline bool has_ended(double end_s, const Knowledge& known) {
  refuse_while_recording();
  const Hold held;
  retire_ended();
  raise_if_faulted();
  if (end_s > now_s()) {
    move_clock_for_question();
    return false;
  }
  host_knows.learn(known);
  return true;
}

// --- the first use ----------------------------------------------------------------------------------------------

inline bool any_context() {
  return std::any_of(devices.begin(), devices.end(), [](const auto& device) { return device->has_context; });
}

inline void open_context(Device& device) {
  if (device.has_context) return;
  TORCH_CHECK_WITH(OutOfMemoryError, card.claim(device.index, settings.context_bytes), "standin out of memory: standin:",
                   device.index, " has no ", settings.context_bytes, " bytes left for a context; ",
                   card.used(device.index), " of ", settings.memory_bytes, " are in use");
  device.memory.open();
  stream_at(device, 0);
  static const int watched = ::pthread_atfork(nullptr, nullptr, [] { in_bad_fork = true; });
  TORCH_CHECK(watched == 0, "standin: pthread_atfork failed");
  device.has_context = true;
  at::globalContext().lazyInitDevice(TYPE);  // else torch takes no memory for pinned
}

// What every call does first.
inline void enter(Device& device) {
  open_context(device);
  retire_ended();
  raise_if_faulted();
}

}  // namespace standin
