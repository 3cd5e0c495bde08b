// The relative form of programs, what their keys and hashes cover, and their structures, for Python. Everything here may come from a
// stranger: whatever is not exactly as expected raises ValueError.

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstdint>
#include <exception>
#include <new>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hashed_content.h"
#include "plan_material.h"
#include "relative.h"
#include "structure.h"

namespace djinn_wire {
namespace {

struct Buffer {
  Py_buffer view{};
  ~Buffer() { PyBuffer_Release(&view); }  // of an empty one: nothing
  std::string_view bytes() const {
    return {static_cast<const char*>(view.buf), static_cast<size_t>(view.len)};
  }
};

// Waiting to get the interpreter's lock back takes longer than less work does.
constexpr size_t kUnlockedBytesMin = 64 * 1024;

// Runs it, long work without the interpreter's lock; false and a Python exception when the bytes are wrong.
template <class Work>
DJINN_INLINE bool done(Work& work, size_t bytes) {
  std::string problem;
  bool no_memory = false;
  PyThreadState* unlocked = bytes < kUnlockedBytesMin ? nullptr : PyEval_SaveThread();
  try {
    work.run();
  } catch (const std::bad_alloc&) {
    no_memory = true;
  } catch (const std::exception& error) {
    problem = error.what();
  }
  if (unlocked != nullptr) PyEval_RestoreThread(unlocked);
  if (no_memory) PyErr_NoMemory();
  if (!problem.empty()) PyErr_SetString(PyExc_ValueError, problem.c_str());
  return !no_memory && problem.empty();
}

template <class Direction>
PyObject* rewrite(PyObject*, PyObject* arguments) {
  Buffer data, state;
  long long highest, floor, call;
  if (!PyArg_ParseTuple(arguments, "y*LLLz*", &data.view, &highest, &floor, &call, &state.view)) {
    return nullptr;
  }
  for (const long long number : {highest, floor, call}) {
    if (number < 0 || number > kNumberMax) {
      PyErr_SetString(PyExc_ValueError, "the origin is out of range");
      return nullptr;
    }
  }
  const std::string_view last = state.bytes();
  try {
    const std::string_view* known = state.view.buf == nullptr ? nullptr : &last;
    Rewriting<Direction> work(data.bytes(), {highest, floor, call}, known);
    if (!done(work, data.bytes().size())) return nullptr;
    const std::string_view bytes = work.bytes();
    const Origin next = work.next();
    return Py_BuildValue("y#(LLL)", bytes.data(), static_cast<Py_ssize_t>(bytes.size()),
                         static_cast<long long>(next.highest), static_cast<long long>(next.floor),
                         static_cast<long long>(next.call));
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
}

PyObject* list_of(const std::vector<std::string_view>& texts) {
  PyObject* list = PyList_New(static_cast<Py_ssize_t>(texts.size()));
  for (size_t place = 0; list != nullptr && place < texts.size(); ++place) {
    const auto size = static_cast<Py_ssize_t>(texts[place].size());
    PyObject* text = PyUnicode_FromStringAndSize(texts[place].data(), size);
    if (text == nullptr) {
      Py_CLEAR(list);
    } else {
      PyList_SET_ITEM(list, static_cast<Py_ssize_t>(place), text);
    }
  }
  return list;
}

PyObject* plan_material(PyObject*, PyObject* argument) {
  Buffer data;
  if (PyObject_GetBuffer(argument, &data.view, PyBUF_SIMPLE) != 0) return nullptr;
  try {
    Numbering numbering(data.bytes().size());
    std::vector<std::string_view> names;
    PlanMaterial work(data.bytes(), numbering, names);
    if (!done(work, data.bytes().size())) return nullptr;
    const std::string_view bytes = work.bytes();
    PyObject* blobs = work.plain() ? list_of(names) : Py_NewRef(Py_None);
    return Py_BuildValue("y#N", bytes.data(), static_cast<Py_ssize_t>(bytes.size()), blobs);
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
}

PyObject* hashed_content(PyObject*, PyObject* argument) {
  Buffer data;
  if (PyObject_GetBuffer(argument, &data.view, PyBUF_SIMPLE) != 0) return nullptr;
  try {
    HashedContent work(data.bytes());
    if (!done(work, data.bytes().size())) return nullptr;
    const std::string_view bytes = work.bytes();
    return PyBytes_FromStringAndSize(bytes.data(), static_cast<Py_ssize_t>(bytes.size()));
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
}

template <class Item, class Make>
PyObject* tuple_of(const std::vector<Item>& items, Make make) {
  PyObject* tuple = PyTuple_New(static_cast<Py_ssize_t>(items.size()));
  for (size_t place = 0; tuple != nullptr && place < items.size(); ++place) {
    PyObject* item = make(items[place]);
    if (item == nullptr) {
      Py_CLEAR(tuple);
    } else {
      PyTuple_SET_ITEM(tuple, static_cast<Py_ssize_t>(place), item);
    }
  }
  return tuple;
}

PyObject* numbers(const Numbers& row) {
  return tuple_of(row, [](int64_t one) { return one == kNone ? Py_NewRef(Py_None) : PyLong_FromLongLong(one); });
}

PyObject* truths(const Numbers& row) {
  return tuple_of(row, [](int64_t one) { return one == kNone ? Py_NewRef(Py_None) : PyBool_FromLong(one); });
}

PyObject* call(const Call& one) {
  return Py_BuildValue("LNNN", static_cast<long long>(one.pattern), numbers(one.inputs), numbers(one.outputs),
                       truths(one.shared));
}

PyObject* together(const Together& one) {
  return Py_BuildValue("NL", numbers(one.sizes), static_cast<long long>(one.node));
}

// As an array of Python holds them.
PyObject* column(const Numbers& row) {
  return PyBytes_FromStringAndSize(reinterpret_cast<const char*>(row.data()),
                                   static_cast<Py_ssize_t>(row.size() * sizeof(row[0])));
}

bool read_numbers(PyObject* tuple, Numbers& row) {
  for (Py_ssize_t place = 0; place < PyTuple_GET_SIZE(tuple); ++place) {
    row.push_back(PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, place)));
  }
  return PyErr_Occurred() == nullptr;
}

PyObject* structure(PyObject*, PyObject* arguments) {
  Buffer material;
  PyObject* sources;
  if (!PyArg_ParseTuple(arguments, "y*O!", &material.view, &PyTuple_Type, &sources)) return nullptr;
  try {
    Numbers sizes;
    if (!read_numbers(sources, sizes)) return nullptr;
    Structure found(material.bytes(), std::move(sizes));
    if (!done(found, material.bytes().size())) return nullptr;
    return Py_BuildValue("NNNNNNNNNn", tuple_of(found.calls, call), column(found.call_of),
                         numbers(found.counts), column(found.sizes), column(found.made),
                         column(found.freed), tuple_of(found.touched, together), numbers(found.kept),
                         numbers(found.reads), static_cast<Py_ssize_t>(found.first_reads));
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
}

PyMethodDef methods[] = {
    {"to_relative", rewrite<ToRelative>, METH_VARARGS,
     "to_relative(program, highest, floor, call, state) -> (bytes, (highest, floor, call))"},
    {"to_whole", rewrite<ToWhole>, METH_VARARGS,
     "to_whole(relative, highest, floor, call, state) -> (bytes, (highest, floor, call))"},
    {"plan_material", plan_material, METH_O, "plan_material(program) -> (bytes, list[str] | None)"},
    {"hashed_content", hashed_content, METH_O, "hashed_content(program) -> bytes"},
    {"structure", structure, METH_VARARGS,
     "structure(material, sizes of sources) -> the columns of a ProgramStructure, see structure.py"},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "djinn_wire", "Programs on the wire, see djinn_lab/srg/relative.py.", 0, methods,
    nullptr, nullptr, nullptr, nullptr,
};

}  // namespace
}  // namespace djinn_wire

PyMODINIT_FUNC PyInit_djinn_wire() { return PyModule_Create(&djinn_wire::module); }
