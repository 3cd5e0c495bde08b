// Random numbers of a device: the CPU's algorithm, with a state of its own or, by `host_random`, the CPU's.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/GeneratorForPrivateuseone.h>

#include "device.h"

namespace standin {

struct Generator final : c10::GeneratorImpl {
  Generator(int device, at::Generator of_cpu)
      : GeneratorImpl({TYPE, static_cast<c10::DeviceIndex>(device)}, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
        cpu(std::move(of_cpu)) {}

  void set_current_seed(uint64_t seed) override {
    const std::lock_guard<std::mutex> held(cpu.mutex());
    cpu.set_current_seed(seed);
  }
  uint64_t current_seed() const override { return cpu.current_seed(); }
  uint64_t seed() override {
    const std::lock_guard<std::mutex> held(cpu.mutex());
    return cpu.seed();
  }
  void set_offset(uint64_t) override { TORCH_CHECK(false, "standin: generators have no offset"); }
  uint64_t get_offset() const override { TORCH_CHECK(false, "standin: generators have no offset"); }
  void set_state(const c10::TensorImpl& state) override {
    const std::lock_guard<std::mutex> held(cpu.mutex());
    cpu.unsafeGetGeneratorImpl()->set_state(state);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    const std::lock_guard<std::mutex> held(cpu.mutex());
    return cpu.unsafeGetGeneratorImpl()->get_state();
  }
  GeneratorImpl* clone_impl() const override { return new Generator(device().index(), cpu.clone()); }

  mutable at::Generator cpu;  // the one that the CPU's kernels draw from
};

inline at::Generator new_generator(int device) {
  return at::make_generator<Generator>(device_at(device).index, at::detail::createCPUGenerator());
}

inline const at::Generator& default_generator(int device) {
  static std::array<at::Generator, MAX_DEVICES>& all = *new std::array<at::Generator, MAX_DEVICES>();
  const Hold held;
  const int index = device_at(device).index;
  if (all[index].defined()) return all[index];
  at::Generator cpu = settings.host_random ? at::detail::getDefaultCPUGenerator()
                                           : at::detail::createCPUGenerator(c10::default_rng_seed_val);
  return all[index] = at::make_generator<Generator>(index, std::move(cpu));
}

// The CPU's generator behind one of a device.
inline at::Generator& cpu_generator(const at::Generator& of_device) {
  return static_cast<Generator*>(of_device.unsafeGetGeneratorImpl())->cpu;
}

// Lets the CPU's default generator draw what the device's would, for kernels that were given none.
class DrawsFromDevice {
 public:
  explicit DrawsFromDevice(int device) : of_device_(cpu_generator(default_generator(device))) {
    swap();
  }
  ~DrawsFromDevice() { swap(); }
  DrawsFromDevice(const DrawsFromDevice&) = delete;
  DrawsFromDevice& operator=(const DrawsFromDevice&) = delete;

 private:
  void swap() {
    at::Generator cpu = at::detail::getDefaultCPUGenerator();
    const std::lock_guard<std::mutex> held(cpu.mutex());
    const at::Tensor of_cpu = cpu.get_state();
    cpu.set_state(of_device_.get_state());
    of_device_.set_state(of_cpu);
  }

  at::Generator& of_device_;
};

}  // namespace standin
