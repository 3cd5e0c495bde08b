// Current device, streams and events, as torch asks for them.
#pragma once

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "allocator.h"

namespace standin {

inline c10::Device device_called(int index) { return {TYPE, static_cast<c10::DeviceIndex>(index)}; }

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return TYPE; }

  c10::Device exchangeDevice(c10::Device to) const override {
    const c10::Device before = getDevice();
    setDevice(to);
    return before;
  }
  c10::Device getDevice() const override { return device_called(current_device); }
  void setDevice(c10::Device to) const override {
    if (to.index() < 0) return;
    TORCH_CHECK(to.index() < settings.devices, "standin: invalid device ordinal ", static_cast<int>(to.index()), " of ",
                settings.devices);
    current_device = to.index();
  }
  void uncheckedSetDevice(c10::Device to) const noexcept override {
    if (to.index() >= 0) current_device = to.index();
  }
  c10::DeviceIndex deviceCount() const noexcept override { return static_cast<c10::DeviceIndex>(settings.devices); }

  c10::DeviceCapability getDeviceCapability(c10::Device) const override { return {}; }  // every dtype

  // --- streams ---

  c10::Stream getStream(c10::Device on) const override {
    const int index = device_at(on.index()).index;
    return stream_called(index, current_stream[index]);
  }
  c10::Stream getDefaultStream(c10::Device on) const override {
    return stream_called(device_at(on.index()).index, 0);
  }
  c10::Stream getNewStream(c10::Device on, int) const override {
    const Hold held;
    Device& device = device_at(on.index());
    return stream_called(device.index, 1 + device.streams_given++ % (MAX_STREAMS - 1));
  }
  c10::Stream getStreamFromGlobalPool(c10::Device on, bool) const override { return getNewStream(on, 0); }
  c10::Stream exchangeStream(c10::Stream to) const override {
    const int before = std::exchange(current_stream[to.device_index()], static_cast<int>(to.id()));
    return stream_called(to.device_index(), before);
  }
  bool queryStream(const c10::Stream& stream) const override {
    const Stream asked = copy_of(stream);
    return has_ended(asked.ready_s, asked.knows);
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    const Stream awaited = copy_of(stream);
    wait_until(device_at(stream.device_index()), awaited.ready_s, awaited.knows);
  }
  void synchronizeDevice(const c10::DeviceIndex index) const override { synchronize(device_at(index)); }
  void recordDataPtrOnStream(const c10::DataPtr& pointer, const c10::Stream& stream) const override {
    allocator.recordStream(pointer, stream);
  }

  // --- events ---

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex, const c10::EventFlag) const override {
    const Hold held;
    Device& device = device_at(stream.device_index());
    enter(device);
    Stream& on = stream_at(device, static_cast<int>(stream.id()));
    on.knows.learn(host_knows);
    if (*event == nullptr) *event = new Event();
    *static_cast<Event*>(*event) = {device.index, std::max(on.ready_s, now_s()), on.knows};
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event == nullptr) return;
    const Hold held;
    const auto& awaited = *static_cast<Event*>(event);
    Stream& waiting = stream_at(device_at(stream.device_index()), static_cast<int>(stream.id()));
    waiting.ready_s = std::max(waiting.ready_s, awaited.end_s);
    waiting.knows.learn(awaited.knows);
  }
  bool queryEvent(void* event) const override {
    if (event == nullptr) return true;
    const Event asked = copy_of(event);
    return has_ended(asked.end_s, asked.knows);
  }
  void synchronizeEvent(void* event) const override {
    if (event == nullptr) return;
    const Event awaited = copy_of(event);
    wait_until(device_at(awaited.device), awaited.end_s, awaited.knows);
  }
  double elapsedTime(void* from, void* to, const c10::DeviceIndex) const override {
    const Event begin = copy_of(from), end = copy_of(to);
    TORCH_CHECK(has_ended(begin.end_s, begin.knows) && has_ended(end.end_s, end.knows),
                "Both events must be completed before calculating elapsed time.");
    return 1e3 * (end.end_s - begin.end_s);
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override { delete static_cast<Event*>(event); }

 private:
  static c10::Stream stream_called(int device, int id) {
    return c10::Stream(c10::Stream::UNSAFE, device_called(device), id);
  }
  // Copies, as others launch while the host waits for what was there.
  static Stream copy_of(const c10::Stream& stream) {
    const Hold held;
    return stream_at(device_at(stream.device_index()), static_cast<int>(stream.id()));
  }
  static Event copy_of(void* event) {
    const Hold held;
    return *static_cast<Event*>(event);
  }
};

}  // namespace standin
