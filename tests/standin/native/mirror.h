// The device's tensors as the CPU's kernels see them, and the kernels' results as tensors of the device.
#pragma once

#include <ATen/EmptyTensor.h>
#include <ATen/core/List.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/CPUAllocator.h>

#include "allocator.h"
#include "launch.h"

namespace standin {

inline bool is_ours(const at::Tensor& tensor) { return tensor.defined() && tensor.device().type() == TYPE; }

// The bytes of a storage's memory; nullptr where it has none.
inline uint8_t* bytes_of(const c10::StorageImpl* storage) {
  Device* device = device_of_address(storage->data());
  return device == nullptr ? nullptr : device->memory.bytes_at(storage->data());
}

inline void copy_conjugate_and_negative(const at::Tensor& from, const at::Tensor& to) {
  if (from.is_conj()) to.unsafeGetTensorImpl()->_set_conj(true);
  if (from.is_neg()) to.unsafeGetTensorImpl()->_set_neg(true);
}

// Twins of the tensors of one call. Tensors that share a storage have twins that share one.
class Mirror {
 public:
  at::Tensor twin(const at::Tensor& of) {
    if (!is_ours(of)) return of;
    auto twin = at::detail::make_tensor<c10::TensorImpl>(twin_storage(of), c10::DispatchKeySet(c10::DispatchKey::CPU),
                                                         of.dtype());
    auto* impl = twin.unsafeGetTensorImpl();
    impl->set_sizes_and_strides(of.sizes(), of.strides());
    impl->set_storage_offset(of.storage_offset());
    if (of.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
    copy_conjugate_and_negative(of, twin);
    return twin;
  }

  // The device's view for the kernel's view of a twin; undefined where the result has memory of its own.
  at::Tensor view_for(const at::Tensor& computed) const {
    if (!computed.has_storage()) return {};
    for (const Pair& pair : pairs_) {
      if (pair.twin.unsafeGetStorageImpl() != computed.storage().unsafeGetStorageImpl()) continue;
      c10::Storage storage = pair.original;
      auto view = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, std::move(storage), pair.keys,
                                                           computed.dtype());
      view.unsafeGetTensorImpl()->set_sizes_and_strides(computed.sizes(), computed.strides());
      view.unsafeGetTensorImpl()->set_storage_offset(computed.storage_offset());
      copy_conjugate_and_negative(computed, view);
      return view;
    }
    return {};
  }

 private:
  struct Pair {
    c10::Storage original, twin;
    c10::DispatchKeySet keys;
  };

  // Resizable, as a kernel resizes its out=; what it then writes elsewhere is copied back by the caller.
  c10::Storage twin_storage(const at::Tensor& of) {
    for (const Pair& pair : pairs_)
      if (pair.original.unsafeGetStorageImpl() == of.storage().unsafeGetStorageImpl()) return pair.twin;
    const auto* impl = of.storage().unsafeGetStorageImpl();
    c10::Storage twin(c10::Storage::use_byte_size_t(), impl->nbytes(), c10::DataPtr(bytes_of(impl), c10::kCPU),
                      c10::GetCPUAllocator(), true);
    const c10::DispatchKeySet bits({c10::DispatchKey::Conjugate, c10::DispatchKey::Negative});
    pairs_.push_back({of.storage(), twin, of.key_set() - bits});
    return twin;
  }

  std::vector<Pair> pairs_;
};

inline at::Tensor new_on_device(c10::IntArrayRef sizes, c10::IntArrayRef strides, c10::ScalarType dtype) {
  const c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);
  return at::detail::empty_strided_generic(sizes, strides, &allocator, keys, dtype);
}

// Moves what a kernel returned to the current device.
inline at::Tensor to_device(const at::Tensor& host) {
  if (!host.defined() || host.device().type() != c10::kCPU || host.layout() != c10::kStrided) return host;
  at::Tensor result = new_on_device(host.sizes(), host.strides(), host.scalar_type());
  if (!host.is_non_overlapping_and_dense()) {
    Mirror().twin(result).copy_(host);
  } else if (host.nbytes() != 0) {
    uint8_t* bytes = bytes_of(result.storage().unsafeGetStorageImpl());
    if (host._is_zerotensor()) std::memset(bytes, 0, host.nbytes());
    else std::memcpy(bytes, host.const_data_ptr(), host.nbytes());
  }
  if (host.unsafeGetTensorImpl()->is_wrapped_number()) result.unsafeGetTensorImpl()->set_wrapped_number(true);
  return result;
}

// --- tensors within an op's arguments and results ---------------------------------------------------------------

template <class Action>
void for_each_tensor(const c10::IValue& value, const Action& action) {
  if (value.isTensor()) {
    action(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorList()) action(tensor);
  } else if (value.isOptionalTensorList()) {
    for (const std::optional<at::Tensor> tensor : value.toOptionalTensorList())
      if (tensor.has_value()) action(*tensor);
  }
}

template <class Change>
c10::IValue map_tensors(const c10::IValue& value, const Change& change) {
  if (value.isTensor()) return change(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> changed;
    for (const at::Tensor& tensor : value.toTensorList()) changed.push_back(change(tensor));
    return changed;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> changed;
    for (const std::optional<at::Tensor> tensor : value.toOptionalTensorList())
      changed.push_back(tensor.has_value() ? std::optional<at::Tensor>(change(*tensor)) : std::nullopt);
    return changed;
  }
  return value;
}

}  // namespace standin
