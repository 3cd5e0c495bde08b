// Which function torch calls for which op on this device.
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/set_native.h>
#include <torch/library.h>

#include "copies.h"
#include "hooks.h"
#include "kernels.h"
#include "whole_ops.h"

namespace standin {

namespace {

at::Tensor empty(c10::IntArrayRef sizes, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout>,
                 std::optional<c10::Device> on, std::optional<bool>, std::optional<c10::MemoryFormat> format) {
  const c10::DeviceGuard guard(on.value_or(device_called(current_device)));
  const c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);
  return at::detail::empty_generic(sizes, &allocator, keys, c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(c10::IntArrayRef sizes, c10::IntArrayRef strides, std::optional<c10::ScalarType> dtype,
                         std::optional<c10::Layout>, std::optional<c10::Device> on, std::optional<bool>) {
  const c10::DeviceGuard guard(on.value_or(device_called(current_device)));
  return new_on_device(sizes, strides, c10::dtype_or_default(dtype));
}

void record_stream(at::Tensor& tensor, c10::Stream stream) {
  allocator.recordStream(tensor.storage().data_ptr(), stream);
}

at::Tensor& set_part_of_storage(at::Tensor& self, at::Storage storage, int64_t offset, c10::IntArrayRef size,
                                c10::IntArrayRef stride) {
  return at::native::set_storage_cpu_(self, std::move(storage), offset, size, stride);
}

at::Tensor& set_whole_storage(at::Tensor& self, at::Storage storage) {
  const auto count = static_cast<int64_t>(storage.nbytes() / self.dtype().itemsize());
  return at::native::set_storage_cpu_(self, std::move(storage), 0, {count}, {});
}

at::Tensor& set_to_nothing(at::Tensor& self) {
  c10::Storage storage(c10::Storage::use_byte_size_t(), 0, allocator.allocate(0), &allocator, true);
  return at::native::set_storage_cpu_(self, std::move(storage), 0, {0}, {});
}

}  // namespace

void resize_storage(const c10::Storage& storage, size_t size) {
  auto* impl = storage.unsafeGetStorageImpl();
  if (impl->nbytes() != 0) refuse_while_recording();
  const c10::DeviceGuard guard(impl->device());
  const Hold held;
  c10::DataPtr grown = allocator.allocate(size);
  const uint8_t* before = bytes_of(impl);
  if (grown.get() != nullptr && before != nullptr) {
    auto* block = static_cast<Block*>(grown.get_context());
    Device& device = *devices[block->device];
    std::memcpy(device.memory.bytes_at(grown.get()), before, std::min(size, impl->nbytes()));
    Launch launch(device, "resize");
    launch.writes(*block);
    launch.ends_after(kernel_s(static_cast<int64_t>(size)));
  }
  impl->set_data_ptr_noswap(std::move(grown));
  impl->set_nbytes(size);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_kernel>()); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("resize_", &at::native::resize_);
  m.impl("set_.source_Storage_storage_offset", &set_part_of_storage);
  m.impl("set_.source_Storage", &set_whole_storage);
  m.impl("set_.source_Tensor", &at::native::set_tensor_);
  m.impl("set_", &set_to_nothing);
  m.impl("record_stream", &record_stream);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_local_scalar_dense", &local_scalar);
}

// Twins carry these bits themselves.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, Negative, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }

int register_whole_ops() {
  static const auto* kept = new std::vector<c10::RegistrationHandleRAII>(whole_ops());
  return static_cast<int>(kept->size());
}

}  // namespace standin
