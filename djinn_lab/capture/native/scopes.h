// Module path, root call, cell line and phase of the op that is recorded, without a Python hook for each module.
#pragma once
#include <torch/csrc/autograd/graph_task.h>
#include "recorder.h"
#define DJINN_KNOWS_FRAMES (PY_VERSION_HEX < 0x030E0000)  // as far as their layout was tried
#if DJINN_KNOWS_FRAMES
#define Py_BUILD_CORE 1
#include <internal/pycore_frame.h>
#undef Py_BUILD_CORE
#endif

namespace djinn {
inline uint64_t cells_ever = 0;

inline bool is_of_cell(const Scopes& scopes, PyCodeObject* code) {
  struct Known {
    PyCodeObject* code = nullptr;
    uint64_t cell = 0;
    bool answer = false;
  };
  static thread_local Known known[64];
  auto& entry = known[(reinterpret_cast<uintptr_t>(code) >> 5) & 63];
  if (entry.code == code && entry.cell == scopes.cell_number) return entry.answer;
  PyObject* name = code->co_filename;
  auto& file = scopes.cell_file;
  bool answer = PyUnicode_IS_READY(name) && size_t(PyUnicode_GET_LENGTH(name)) * PyUnicode_KIND(name) == file.size() &&
      !std::memcmp(PyUnicode_DATA(name), file.data(), file.size());
  entry = {code, scopes.cell_number, answer};
  return answer;
}

#if DJINN_KNOWS_FRAMES
#if PY_VERSION_HEX >= 0x030D0000
inline _PyInterpreterFrame* top_frame(PyThreadState* thread) { return thread->current_frame; }
inline PyCodeObject* code_of(_PyInterpreterFrame* frame) {  // null below the interpreter's own frames
  return PyCode_Check(frame->f_executable) ? reinterpret_cast<PyCodeObject*>(frame->f_executable) : nullptr;
}
inline const void* instruction_of(_PyInterpreterFrame* frame) { return frame->instr_ptr; }
#else
inline _PyInterpreterFrame* top_frame(PyThreadState* thread) { return thread->cframe->current_frame; }
inline PyCodeObject* code_of(_PyInterpreterFrame* frame) { return frame->f_code; }
inline const void* instruction_of(_PyInterpreterFrame* frame) { return frame->prev_instr; }
#endif
// Reads this very thread's frames, which stand still meanwhile: no need for the GIL.
inline uint32_t Scopes::line() const {
  if (cell_file.empty()) return 0;
  PyThreadState* thread = PyGILState_GetThisThreadState();
  if (!thread) return 0;
  struct Known {
    const void* instruction = nullptr;
    uint32_t line = 0;
    uint64_t cell = 0;
  };
  static thread_local Known lines[256];
  for (auto* frame = top_frame(thread); frame; frame = frame->previous) {
    PyCodeObject* code = code_of(frame);
    if (!code || !is_of_cell(*this, code)) continue;
    const void* instruction = instruction_of(frame);
    auto& entry = lines[(reinterpret_cast<uintptr_t>(instruction) >> 1) & 255];
    if (C10_UNLIKELY(entry.instruction != instruction || entry.cell != cell_number)) {
      int place = int(_PyInterpreterFrame_LASTI(frame)) * int(sizeof(_Py_CODEUNIT));
      entry = {instruction, uint32_t(std::max(0, PyCode_Addr2Line(code, place))), cell_number};
    }
    return entry.line;
  }
  return 0;
}
#else
inline uint32_t Scopes::line() const {
  if (cell_file.empty()) return 0;
  py::gil_scoped_acquire gil;
  uint32_t line = 0;
  PyFrameObject* frame = PyThreadState_GetFrame(PyThreadState_Get());
  while (frame) {
    PyCodeObject* code = PyFrame_GetCode(frame);
    bool found = is_of_cell(*this, code);
    Py_DECREF(code);
    if (found) line = uint32_t(std::max(0, PyFrame_GetLineNumber(frame)));
    PyFrameObject* back = found ? nullptr : PyFrame_GetBack(frame);
    Py_DECREF(frame);
    frame = back;
  }
  return line;
}
#endif

inline void Scopes::enter_cell(const std::string& name, const std::string& file) {
  cell = name;
  py::str text(file);  // as the interpreter stores it
  cell_file.assign(static_cast<const char*>(PyUnicode_DATA(text.ptr())),
                   size_t(PyUnicode_GET_LENGTH(text.ptr())) * PyUnicode_KIND(text.ptr()));
  cell_number = ++cells_ever;
  modules.clear();
  seen_modules.clear();
  in_optimizer = false;
}
inline void Scopes::look() {
  int task = torch::autograd::get_current_graph_task_id();
  uint32_t path = modules.empty() ? 0 : modules.back();
  if (task != -1) {
    if (task != backward_task) {
      backward_task = task;
      backward_line = line();
    }
    seen = {path, root_call, backward_line, Phase::backward};
  } else if (in_optimizer) {
    seen = {path, root_call, optimizer_line, Phase::optimizer};
  } else if (path) {
    seen = {path, root_call, module_line, Phase::forward};
  } else {
    seen = {0, root_call, line(), Phase::other};
  }
}
inline uint32_t Scopes::current() {
  if (seen == last_ && !table.empty()) return last_index_;
  uint64_t key = mix(mix(mix(uint64_t(seen.path), seen.call), seen.line), uint64_t(seen.phase));
  for (;; key++) {
    auto [found, is_new] = index_.try_emplace(key, uint32_t(table.size()));
    if (is_new) table.push_back(seen);
    if (is_new || table[found->second] == seen) {
      last_ = seen;
      return last_index_ = found->second;
    }
  }
}
inline void Scopes::clear() {
  table.clear();
  index_.clear();
  calls = 0;
}
inline uint32_t Scopes::path_id(const std::string& path) {
  auto [found, is_new] = path_ids_.try_emplace(path, uint32_t(paths.size()));
  if (is_new) paths.push_back(path);
  return found->second;
}
}  // namespace djinn
