// The extension module: registers the device with torch, and lets tests ask and disturb it.
#include <torch/csrc/utils/pybind.h>

#include "graphs.h"
#include "hooks.h"
#include "reports.h"

namespace py = pybind11;

namespace standin {

int register_whole_ops();  // in ops.cpp

namespace {

void register_device() {
  static Guard guard;
  static const c10::impl::DeviceGuardImplRegistrar registrar(TYPE, &guard);
  c10::SetAllocator(TYPE, &allocator);
  at::setHostAllocator(TYPE, &pinned_allocator);
  at::RegisterPrivateUse1HooksInterface(new Hooks());
}

void configure(Settings wanted) {
  const Hold held;
  TORCH_CHECK(!any_context(), "standin: configure it before its first use");
  TORCH_CHECK(wanted.devices >= 1 && wanted.devices <= MAX_DEVICES, "standin: 1 to ", MAX_DEVICES, " devices, not ",
              wanted.devices);
  settings = std::move(wanted);
}

std::vector<std::string> take_races() {
  const std::lock_guard<std::mutex> held(report_lock);
  return std::exchange(races, {});
}

py::dict counters(int index) {
  const Hold held;
  const Counters counted = device_at(index).counters;
  py::dict result;
  result["launches"] = counted.launches;
  result["views"] = counted.views;
  result["copies"] = counted.copies;
  result["waits"] = counted.waits;
  return result;
}

// The driver ends a kernel that runs too long.
void interrupt_kernels() { fail_at(now_s(), "the launch timed out and was terminated"); }

}  // namespace

}  // namespace standin

// By the name that the package gives the device type.
namespace at {
REGISTER_GRAPH_IMPL(STANDIN, standin::Graph)
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  using namespace standin;
  register_device();
  m.attr("whole_ops") = register_whole_ops();

  py::class_<Settings>(m, "Settings")
      .def(py::init<>())
      .def_readwrite("devices", &Settings::devices)
      .def_readwrite("memory_bytes", &Settings::memory_bytes)
      .def_readwrite("context_bytes", &Settings::context_bytes)
      .def_readwrite("launch_s", &Settings::launch_s)
      .def_readwrite("kernel_bytes_per_s", &Settings::kernel_bytes_per_s)
      .def_readwrite("link_bytes_per_s", &Settings::link_bytes_per_s)
      .def_readwrite("manual", &Settings::manual)
      .def_readwrite("host_random", &Settings::host_random)
      .def_readwrite("log", &Settings::log)
      .def_readwrite("card", &Settings::card);
  m.def("configure", &configure);
  m.def("settings", [] { return settings; });

  m.def("current_device", [] { return current_device; });
  m.def("set_device", [](int index) { Guard().setDevice(device_called(index)); });
  m.def("in_bad_fork", [] { return in_bad_fork; });
  m.def("limit_memory", [](int index, int64_t bytes) {
    const Hold held;
    device_at(index).memory.limit_bytes = bytes;
  });
  m.def("default_generator", [](int index) { return default_generator(index); });
  m.def("memory_info", [](int index) { return allocator.getMemoryInfo(static_cast<c10::DeviceIndex>(index)); });

  m.def("pin", &pin);
  m.def("unpin", [](uintptr_t address) { pinned.remove(address); });
  m.def("is_pinned", [](uintptr_t address) { return pinned.contains(address); });

  m.def("take_races", &take_races);
  m.def("counters", &counters);
  m.def("fail_next", [](std::string text) {
    const Hold held;
    next_kernel.fault = std::move(text);
  });
  m.def("next_kernel_takes", [](double seconds) {
    const Hold held;
    next_kernel.seconds = seconds;
  });
  m.def("interrupt_kernels", &interrupt_kernels);
}
