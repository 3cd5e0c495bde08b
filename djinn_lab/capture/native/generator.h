// The default CPU generator, which makes the recorded draws before its state is read or set.
#pragma once
#include <ATen/CPUGeneratorImpl.h>
#include "dispatch.h"

namespace djinn {
// Has no fields of its own, so that the generator that torch has can become one: copies of it are all over torch.
class SettledGenerator final : public at::CPUGeneratorImpl {
 public:
  void set_current_seed(uint64_t seed) override {
    settle("a random seed was set");
    at::CPUGeneratorImpl::set_current_seed(seed);
  }
  uint64_t seed() override {
    settle("a random seed was set");
    return at::CPUGeneratorImpl::seed();
  }
  void set_state(const c10::TensorImpl& state) override {
    settle("a random seed was set");
    at::CPUGeneratorImpl::set_state(state);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    settle("the state of random numbers was read");
    return at::CPUGeneratorImpl::get_state();
  }

 private:
  // Callers hold the generator's mutex, as torch asks of them; the draws need it.
  void settle(const char* cause) const {
    if (!capturing_recorder || !c10::impl::tls_is_dispatch_key_included(KEY) || c10::impl::tls_is_dispatch_key_excluded(KEY)) return;
    auto& mutex = const_cast<SettledGenerator*>(this)->mutex_;
    const bool free = mutex.try_lock();
    mutex.unlock();
    struct Relock {
      std::mutex* mutex;
      ~Relock() { if (mutex) mutex->lock(); }
    } relock{free ? nullptr : &mutex};
    py::gil_scoped_acquire gil;
    Off off;
    capturing_recorder->owner().attr("settle_draws")(cause);
  }
  at::CPUGeneratorImpl* clone_impl() const override {
    settle("the state of random numbers was read");
    auto* self = const_cast<SettledGenerator*>(this);
    auto* copy = new at::CPUGeneratorImpl();
    copy->set_engine(self->engine());
    copy->set_next_float_normal_sample(self->next_float_normal_sample());
    copy->set_next_double_normal_sample(self->next_double_normal_sample());
    return copy;
  }
};
static_assert(sizeof(SettledGenerator) == sizeof(at::CPUGeneratorImpl));

inline void settle_default_generator() {
  auto* impl = at::detail::getDefaultCPUGenerator().unsafeGetGeneratorImpl();
  if (typeid(*impl) != typeid(at::CPUGeneratorImpl)) return;
  static auto like = c10::make_intrusive<SettledGenerator>();
  *reinterpret_cast<const void**>(static_cast<void*>(impl)) = *reinterpret_cast<const void**>(static_cast<void*>(like.get()));
}
}  // namespace djinn
