// Lazy memory: an ordinary tensor whose storage is a LazyStorage and whose key set has one bit more.
#pragma once
#include <ATen/EmptyTensor.h>
#include <atomic>
#include <mutex>
#include <vector>
#include "layouts.h"

#ifdef DJINN_KEY_BACKEND
#define DJINN_KEY FPGA
#else
#define DJINN_KEY Fake
#endif

namespace djinn {
constexpr DispatchKey KEY = DispatchKey::DJINN_KEY;
#ifdef DJINN_KEY_BACKEND
static const DispatchKeySet OURS = DispatchKeySet(KEY) | DispatchKeySet(DispatchKey::DeferredInit);
#else
static const DispatchKeySet OURS = DispatchKeySet(KEY);
#endif
static const DispatchKeySet BELOW{DispatchKeySet::FULL_AFTER, KEY};
static const DispatchKeySet TENSOR_KEYS = DispatchKeySet(DispatchKey::CPU) | DispatchKeySet(KEY);

class Recorder;

enum class Residency : uint8_t { weight, activation, kv, input, output };
enum class State : uint8_t {
  pending,  // a recorded node will make it
  source,   // bytes that were staged; they go with the first program that needs them
  held,     // on the pool, or on its way there
};

// A value of the pool that covers all of a storage. Outlives the storage until the pool has been notified.
struct Base {
  uint64_t id;
  const Layout* layout;
  State state;
  Residency residency;
  bool alive = true;   // guarded by the deaths' lock, like `owner`
  bool usable = true;  // neither lost nor replaced
  class LazyStorage* owner = nullptr;
  std::string blob, inline_bytes;
  bool has_inline = false;
  at::Storage spare;  // the host's bytes of this value, which a pending node overwrites or whose storage died
};

struct View {
  uint64_t id;
  int64_t offset;
  const Layout* layout;
};

// What few storages have.
struct Rare {
  at::Storage host;  // the bytes as of `host_version`
  int64_t host_version = -1;
  PyObject* exposure = nullptr;
  PyObject* handle = nullptr;  // a Python object that lives as long as the storage
  std::string lost;
};

class LazyStorage final : public c10::StorageImpl {
 public:
  Recorder* const recorder;
  const uint64_t serial;
  Base* base = nullptr;  // null: the pool has no current copy
  const Layout* layout;  // of the base, also when there is none now
  size_t covered;        // bytes that the base has; torch may have made the storage larger since
  int64_t version = 0;
  Residency residency;
  uint64_t views_segment = 0;
  c10::SmallVector<View, 1> views;  // named by pending nodes of `views_segment`
  std::unique_ptr<Rare> rare;

  LazyStorage(Recorder* recorder, uint64_t serial, int64_t nbytes, const Layout* layout, Residency residency);
  ~LazyStorage() override;

  Rare& more() {
    if (!rare) rare = std::make_unique<Rare>();
    return *rare;
  }
  void release_resources() override;  // while weak references remain
  // An op made it after the storage `serial`; what came from the host was there before.
  bool made_since(uint64_t last) const { return residency == Residency::activation && serial > last; }
  bool exposed() const { return rare && rare->exposure; }
  bool usable() const { return base && base->usable && covered == nbytes() && !(rare && rare->exposure); }
  bool host_is_current() const { return rare && rare->host && rare->host_version == version; }
  void set_host(at::Storage host);
  bool host_moved() { return rare && rare->host && rare->host.data() != _mutable_data_ptr_no_checks().get(); }  // others let it grow
  void point_at_host();
  void forget_host();

 private:
  void give_up();
};

// A reference that does not keep a storage alive.
struct WeakStorage {
  c10::weak_intrusive_ptr<LazyStorage> storage;
};

// Raw reads of memory ask has_storage() first, which is virtual: the bytes are fetched there. Has no fields of its own, so
// a tensor that turns lazy in place can become one.
struct LazyImpl final : TensorImpl {
  LazyImpl(c10::Storage&& storage, DispatchKeySet keys, caffe2::TypeMeta meta) : TensorImpl(std::move(storage), keys, meta) {}
  LazyImpl(ImplType kind, c10::Storage&& storage, DispatchKeySet keys, caffe2::TypeMeta meta)
      : TensorImpl(kind, std::move(storage), keys, meta) {}
  bool has_storage() const override;
  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(const c10::VariableVersion& version, bool allow) const override;
  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(c10::VariableVersion&& version, bool allow) const override {
    return shallow_copy_and_detach(static_cast<const c10::VariableVersion&>(version), allow);
  }
};

extern const void* lazy_storage_table;  // the virtual table of LazyStorage

inline LazyStorage* storage_of(const TensorImpl* impl) {
  return static_cast<LazyStorage*>(impl->unsafe_storage().unsafeGetStorageImpl());
}
inline bool is_lazy(const TensorImpl* impl) {
  if (!impl->key_set().has(KEY)) return false;
  auto* storage = impl->unsafe_storage().unsafeGetStorageImpl();
  return storage && *reinterpret_cast<const void* const*>(storage) == lazy_storage_table;
}

Tensor new_tensor(const Layout* layout, int64_t offset, c10::intrusive_ptr<LazyStorage> storage, const TensorImpl* base);
}  // namespace djinn
