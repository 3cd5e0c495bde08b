// What stands in for torch.nn.Module.__call__ while a cell is captured: it keeps the stack of modules that run, at the price
// of one C call. Module hooks would put every call on torch's slow path.
#pragma once
#include "dispatch.h"

namespace djinn {
struct ModuleNames {  // of one root module: the path of each module below it
  std::unordered_map<PyObject*, uint32_t> paths;
};
inline PyObject* original_call = nullptr;
inline py::object* enter_root = nullptr;    // (recorder, module) -> ModuleNames
inline py::object* enter_module = nullptr;  // (recorder, module): for the first time in a cell

struct ModuleFrame {
  Recorder& recorder;
  bool entered = false;
  explicit ModuleFrame(Recorder& recorder) : recorder(recorder) {}
  bool enter(PyObject* module) {
    auto& scopes = recorder.scopes;
    try {
      py::handle handle(module);
      if (scopes.modules.empty()) {
        scopes.root_call = ++scopes.calls_ever;
        scopes.module_line = scopes.line();
        scopes.begins_call = true;
        scopes.calls++;
        scopes.names = (*enter_root)(recorder.owner, handle).cast<ModuleNames*>();
      }
      auto found = scopes.names->paths.find(module);
      uint32_t path;
      if (found != scopes.names->paths.end()) path = found->second;
      else path = scopes.path_id(Py_TYPE(module)->tp_name);
      scopes.modules.push_back(path);
      entered = true;
      if (scopes.seen_modules.insert(module).second) (*enter_module)(recorder.owner, handle);
      return true;
    } catch (py::error_already_set& error) {
      error.restore();
    }
    return false;
  }
  ~ModuleFrame() {
    auto& scopes = recorder.scopes;
    if (entered && !scopes.modules.empty()) scopes.modules.pop_back();
    if (scopes.modules.empty()) scopes.root_call = 0;
  }
};

inline PyObject* call_module(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  Py_ssize_t total = count + (names ? PyTuple_GET_SIZE(names) : 0);
  c10::SmallVector<PyObject*, 10> all(size_t(total) + 2);
  all[1] = self;
  std::copy(args, args + total, all.begin() + 2);
  bool captured = capturing_recorder && c10::impl::tls_is_dispatch_key_included(KEY) && !c10::impl::tls_is_dispatch_key_excluded(KEY);
  if (!captured) return PyObject_Vectorcall(original_call, all.data() + 1, size_t(count + 1) | PY_VECTORCALL_ARGUMENTS_OFFSET, names);
  ModuleFrame frame(*capturing_recorder);
  if (!frame.enter(self)) return nullptr;
  return PyObject_Vectorcall(original_call, all.data() + 1, size_t(count + 1) | PY_VECTORCALL_ARGUMENTS_OFFSET, names);
}
inline PyMethodDef call_definition = {"__call__", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(call_module)),
                                      METH_FASTCALL | METH_KEYWORDS, "__call__($self, /, *args, **kwargs)\n--\n\nCall a module while a cell is captured."};
// The one stand-in, which calls `original` from now on.
inline py::object module_call(py::object original) {
  static PyObject* call = PyDescr_NewMethod(
      reinterpret_cast<PyTypeObject*>(py::module_::import("torch.nn").attr("Module").ptr()), &call_definition);
  if (original.ptr() != call && original.ptr() != original_call) original_call = original.release().ptr();  // kept: it may be running
  return py::reinterpret_borrow<py::object>(call);
}
}  // namespace djinn
