// Attributes of modules and types, read and written many at a time. A type forgets what it knows of its attributes once, and not once an
// attribute: type.__setattr__ also asks every subclass about its slots, which takes milliseconds for torch.nn.Module with a library of models.
#pragma once
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

namespace djinn {
namespace py = pybind11;
// The dictionary behind an owner's attributes (borrowed); an error is set without one.
inline PyObject* attributes_of(PyObject* owner) {
  if (PyModule_Check(owner)) return PyModule_GetDict(owner);
  if (PyType_Check(owner) && PyType_HasFeature(reinterpret_cast<PyTypeObject*>(owner), Py_TPFLAGS_HEAPTYPE))
    return reinterpret_cast<PyTypeObject*>(owner)->tp_dict;
  PyErr_Format(PyExc_TypeError, "%R is neither a module nor a type made by a class statement", owner);
  return nullptr;
}
// Python fills a slot with the same function for each of these, so that a change from one to another needs no new slot.
inline bool is_plain_method(PyObject* value) { return value && (PyFunction_Check(value) || Py_IS_TYPE(value, &PyMethodDescr_Type)); }
inline bool is_special(PyObject* name) {
  auto length = PyUnicode_GET_LENGTH(name);
  return length > 4 && PyUnicode_READ_CHAR(name, 0) == '_' && PyUnicode_READ_CHAR(name, 1) == '_' &&
         PyUnicode_READ_CHAR(name, length - 1) == '_' && PyUnicode_READ_CHAR(name, length - 2) == '_';
}
// Whether setting the attribute is no more than setting it in the dictionary, and PyType_Modified.
inline bool is_plain(PyObject* owner, PyObject* name, PyObject* old, PyObject* value) {
  auto set = Py_TYPE(owner)->tp_setattro;
  if (PyModule_Check(owner)) return set == PyModule_Type.tp_setattro;
  return set == PyType_Type.tp_setattro && (!is_special(name) || (is_plain_method(old) && is_plain_method(value)));
}

struct Place {
  py::object owner;
  py::object name;
};
// Owners and names, whose values are read and written together.
class Places {
 public:
  Places(const std::vector<std::pair<py::object, py::str>>& places, py::object missing) : missing_(std::move(missing)) {
    for (const auto& [owner, name] : places) {
      PyObject* interned = py::str(name).release().ptr();
      PyUnicode_InternInPlace(&interned);
      places_.push_back({owner, py::reinterpret_steal<py::object>(interned)});
    }
  }
  py::list read() const {
    py::list values(places_.size());
    for (size_t i = 0; i < places_.size(); i++) {
      PyObject* value = value_of(places_[i]);
      values[i] = value ? py::reinterpret_borrow<py::object>(value) : missing_;
    }
    return values;
  }
  // Writes them all, whatever fails; raises the first failure.
  void write(const py::list& values) const {
    if (values.size() != places_.size()) throw std::invalid_argument("a value for each place");
    std::vector<py::object> before;  // nothing is freed, which can run any code, before every type knows
    std::vector<PyTypeObject*> changed;
    std::optional<py::error_already_set> failure;
    before.reserve(places_.size());
    for (size_t i = 0; i < places_.size(); i++) {
      PyObject* value = values[i].ptr() == missing_.ptr() ? nullptr : values[i].ptr();
      try {
        PyObject* old = value_of(places_[i]);
        before.push_back(py::reinterpret_borrow<py::object>(old));
        if (old != value) set(places_[i], old, value, changed);
      } catch (py::error_already_set& error) {
        if (!failure) failure = error;
      }
    }
    for (auto* type : changed) PyType_Modified(type);
    if (failure) throw *failure;
  }

 private:
  static PyObject* value_of(const Place& place) {
    PyObject* attributes = attributes_of(place.owner.ptr());
    PyObject* value = attributes ? PyDict_GetItemWithError(attributes, place.name.ptr()) : nullptr;
    if (!value && PyErr_Occurred()) throw py::error_already_set();
    return value;
  }
  static void set(const Place& place, PyObject* old, PyObject* value, std::vector<PyTypeObject*>& changed) {
    PyObject *owner = place.owner.ptr(), *name = place.name.ptr();
    bool failed;
    if (is_plain(owner, name, old, value)) {
      PyObject* attributes = attributes_of(owner);
      failed = (value ? PyDict_SetItem(attributes, name, value) : PyDict_DelItem(attributes, name)) < 0;
      if (auto* type = reinterpret_cast<PyTypeObject*>(owner); PyType_Check(owner) && std::ranges::find(changed, type) == changed.end())
        changed.push_back(type);
    } else {
      failed = PyObject_SetAttr(owner, name, value) < 0;
    }
    if (failed) throw py::error_already_set();
  }

  std::vector<Place> places_;
  py::object missing_;
};
}  // namespace djinn
