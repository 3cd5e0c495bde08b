// Interned layouts: dtype, sizes, strides and torch's conjugate and negative bits. Equal layouts are one object.
#pragma once
#include <ATen/ATen.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/utils/pybind.h>
#include <string>
#include <unordered_map>

namespace djinn {
namespace py = pybind11;
using at::IValue;
using at::Tensor;
using c10::DispatchKey;
using c10::DispatchKeySet;
using c10::TensorImpl;

struct Layout {
  at::ScalarType dtype;
  caffe2::TypeMeta meta;
  c10::SmallVector<int64_t, 5> sizes, strides;
  bool conjugate, negative;
  int64_t numel, nbytes, span_bytes;
  std::string packed;      // msgpack of the wire's TensorMeta
  PyObject* python = nullptr;  // djinn_lab.capture.values.Layout; owned for good, as layouts are
};

inline uint64_t mix(uint64_t hash, uint64_t word) {
  hash ^= word;
  hash *= 0x9E3779B97F4A7C15ull;
  return hash ^ (hash >> 29);
}

const char* dtype_name(at::ScalarType dtype);
// Both need the recorder's lock.
const Layout* intern(at::ScalarType dtype, at::IntArrayRef sizes, at::IntArrayRef strides, bool conjugate, bool negative);
const Layout* layout_of(const TensorImpl* impl);

inline bool is_conjugate(const TensorImpl* impl) { return impl->key_set().has(DispatchKey::Conjugate); }
inline bool is_negative(const TensorImpl* impl) { return impl->key_set().has(DispatchKey::Negative); }

inline bool matches(const Layout* layout, const TensorImpl* impl) {
  auto sizes = impl->sizes(), strides = impl->strides();
  size_t rank = layout->sizes.size();
  if (sizes.size() != rank || impl->dtype() != layout->meta) return false;
  for (size_t i = 0; i < rank; i++)
    if (sizes[i] != layout->sizes[i] || strides[i] != layout->strides[i]) return false;
  return is_conjugate(impl) == layout->conjugate && is_negative(impl) == layout->negative;
}

// Need the GIL and not the lock.
py::object python_layout(const Layout* layout);
const Layout* layout_from_python(py::handle layout);
}  // namespace djinn
