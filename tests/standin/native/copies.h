// Copies: within a device, between devices, and over the link, where a lane for each direction takes its time.
#pragma once

#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>

#include "graphs.h"
#include "guard.h"
#include "launch.h"
#include "mirror.h"
#include "pinned.h"

namespace standin {

constexpr double PAGEABLE_SHARE = 0.5;  // of the link's rate

inline double link_s(int64_t bytes, bool from_pinned) {
  const double rate = settings.link_bytes_per_s * (from_pinned ? 1.0 : PAGEABLE_SHARE);
  return settings.launch_s + static_cast<double>(bytes) / rate;
}

inline void record_copy(const at::Tensor& from, const at::Tensor& to) {
  const auto compute = [read = without_owner(from), written = without_owner(to)] {
    written.copy_(read);
    return std::string();
  };
  const int64_t bytes = 2 * static_cast<int64_t>(to.nbytes());
  recording->add({compute, {from.storage().data()}, {to.storage().data()}, bytes});
}

// Runs on the source's current stream; between devices both current streams wait for each other, as torch has it.
inline void copy_on_devices(const at::Tensor& from, const at::Tensor& to) {
  const Hold held;
  Device& device = device_at(from.device().index());
  Device& target = device_at(to.device().index());
  enter(device);
  enter(target);
  if (recording != nullptr) return record_copy(from, to);
  Stream& waiting = current_stream_of(target);
  Stream& running = current_stream_of(device);
  running.ready_s = std::max(running.ready_s, waiting.ready_s);
  running.knows.learn(waiting.knows);
  Launch launch(device, "copy");
  launch.reads(from);
  launch.writes(to);
  Mirror mirror;
  mirror.twin(to).copy_(mirror.twin(from));
  ++device.counters.launches;
  waiting.ready_s = launch.ends_after(kernel_s(2 * static_cast<int64_t>(to.nbytes())));
  waiting.knows.learn(running.knows);
}

// What a source in pinned memory must still be when its copy has ended.
inline void watch_source(const at::Tensor& source, double end_s) {
  const at::Tensor kept = source.contiguous().clone();
  at_end(end_s, [source, kept] {
    // Bits, not numbers: equal NaNs are equal.
    if (std::memcmp(kept.const_data_ptr(), source.contiguous().const_data_ptr(), kept.nbytes()) != 0)
      report_race("copy: a pinned source changed before its copy to the device had ended");
  });
}

// Values arrive when the copy has ended, and a host that reads sooner reads poison.
inline void deliver(const at::Tensor& values, const at::Tensor& to, double end_s, bool host_returns) {
  if (host_returns && to.is_non_overlapping_and_dense()) std::memset(to.mutable_data_ptr(), POISON, to.nbytes());
  at_end(end_s, [values, to] { to.copy_(values); });
}

inline void copy_over_link(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  refuse_while_recording();
  const bool in = is_ours(to);
  const at::Tensor& outside = in ? from : to;
  const bool fixed = is_pinned(outside.const_data_ptr());
  const bool host_returns = non_blocking && fixed;
  Device& device = device_at((in ? to : from).device().index());
  double end_s = 0;
  Knowledge known;
  {
    const Hold held;
    enter(device);
    Launch launch(device, in ? "copy to the device" : "copy to the host");
    end_s = launch.ends_after(link_s(static_cast<int64_t>(outside.nbytes()), fixed),
                              in ? &device.in_ready_s : &device.out_ready_s);
    Mirror mirror;
    if (in) {
      launch.writes(to);
      mirror.twin(to).copy_(from);
      if (host_returns) watch_source(from, end_s);
    } else {
      launch.reads(from);
      deliver(mirror.twin(from).to(to.scalar_type(), false, true), to, end_s, host_returns);
    }
    ++device.counters.copies;
    known = launch.stream().knows;
  }
  if (!host_returns) wait_until(device, end_s, known);
}

inline at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  if (to.numel() == 0) return to;
  const c10::DeviceGuard guard(is_ours(from) ? from.device() : to.device());
  if (is_ours(from) && is_ours(to)) copy_on_devices(from, to);
  else copy_over_link(from, to, non_blocking);
  return to;
}

inline at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (to.sizes() != from.sizes()) to.resize_(from.sizes());
  return copy_from(from, to, false);
}

inline c10::Scalar local_scalar(const at::Tensor& tensor) {
  const at::Tensor host = at::empty({}, tensor.options().device(c10::kCPU));
  copy_from(tensor.reshape({}), host, false);
  return host.item();
}

}  // namespace standin
