// Exceptions from outside, held back: what a signal handler raises, and what another thread sends (PyThreadState_SetAsyncExc). Python
// raises either between any two bytecodes. Only what is no bytecode can keep them apart from ours, so holding begins and ends here.
//
// Signals: while a thread that runs handlers holds, each handler of Python's is replaced by one that notes the signal.
// Exceptions of other threads: they are kept in the first thread state with the thread's number, and a new one comes first. While a
// thread holds, there is one that never runs.

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <pthread.h>
#include <structmember.h>

#include <csignal>
#include <utility>
#include <vector>

namespace djinn_interrupts {
namespace {

PyObject *get_handler, *set_handler, *note, *do_nothing;
std::vector<std::pair<int, PyObject*>> numbers;  // of signals that can have a handler
unsigned long main_thread;

struct Replaced {
  PyObject *number, *handler;
};

struct Hold {
  int depth = 0;
  PyThreadState* stand_in = nullptr;
  std::vector<Replaced> replaced;
  std::vector<PyObject*> arrived;  // numbers of signals, borrowed
};
thread_local Hold hold;

// Keeps the exception in flight, if any, while others are taken; a later one names it as its context.
class InFlight {
 public:
  InFlight() { PyErr_Fetch(&type_, &value_, &traceback_); }
  ~InFlight() {
    if (!type_) return;
    if (!PyErr_Occurred()) {
      PyErr_Restore(type_, value_, traceback_);
      return;
    }
    PyObject *later, *value, *traceback;
    PyErr_Fetch(&later, &value, &traceback);
    PyErr_NormalizeException(&later, &value, &traceback);
    PyErr_NormalizeException(&type_, &value_, &traceback_);
    if (traceback_) PyException_SetTraceback(value_, traceback_);
    if (value != value_) PyException_SetContext(value, Py_NewRef(value_));
    PyErr_Restore(later, value, traceback);
    Py_DECREF(type_), Py_XDECREF(value_), Py_XDECREF(traceback_);
  }

 private:
  PyObject *type_, *value_, *traceback_;
};

// Sets a handler. Python calls those of signals that are pending first, and one of them may raise: then it is set all the same.
bool set(PyObject* number, PyObject* handler) {
  bool well = true;
  for (;;) {
    InFlight earlier;
    PyObject* before = PyObject_CallFunctionObjArgs(set_handler, number, handler, nullptr);
    if (before) return Py_DECREF(before), well;
    well = false;
  }
}

// Gives the handlers back and calls those of signals that arrived; false where one raised.
bool give_back() {
  bool well = true;
  auto replaced = std::move(hold.replaced);
  auto arrived = std::move(hold.arrived);
  hold.replaced.clear(), hold.arrived.clear();
  for (auto& [number, handler] : replaced) {
    InFlight earlier;
    PyObject* now = PyObject_CallOneArg(get_handler, number);
    if (now == note && !set(number, handler)) well = false;
    Py_XDECREF(now);
  }
  arrived.insert(arrived.end(), hold.arrived.begin(), hold.arrived.end());  // while they were given back
  hold.arrived.clear();
  for (auto* number : arrived)
    for (auto& [own, handler] : replaced)
      if (own == number) {
        InFlight earlier;
        PyObject* frame = reinterpret_cast<PyObject*>(PyEval_GetFrame());
        PyObject* returned = PyObject_CallFunctionObjArgs(handler, number, frame ? frame : Py_None, nullptr);
        if (!returned) well = false;
        Py_XDECREF(returned);
      }
  for (auto& one : replaced) Py_DECREF(one.handler);
  return well;
}

bool take_handlers() {
  if (PyThread_get_thread_ident() != main_thread) return true;
  for (auto& [value, number] : numbers) {
    PyObject* handler = PyObject_CallOneArg(get_handler, number);
    if (!handler) return false;
    if (handler == note || !PyCallable_Check(handler)) {
      Py_DECREF(handler);
      continue;
    }
    hold.replaced.push_back({number, handler});
    if (!set(number, note)) return false;
  }
  return true;
}

// Under a debugger or coverage Python 3.11 begins no function while something is sent to the thread and not taken: it tries for ever.
bool is_traced([[maybe_unused]] PyThreadState* state) {
#if PY_VERSION_HEX < 0x030C0000
  return state->cframe->use_tracing;
#else
  return false;
#endif
}
// What was sent to this thread, and what will be, goes to a thread state that never runs.
void stand_in() {
  auto* own = PyThreadState_Get();
  if (is_traced(own)) return;
  hold.stand_in = PyThreadState_New(own->interp);
  if (hold.stand_in) hold.stand_in->async_exc = std::exchange(own->async_exc, nullptr);
}
void pass_on(PyThreadState* gone) {
  if (!gone) return;
  PyObject* sent = std::exchange(gone->async_exc, nullptr);
  InFlight earlier;
  PyThreadState_Clear(gone);
  PyThreadState_Delete(gone);
  if (sent) PyThreadState_SetAsyncExc(PyThreadState_Get()->thread_id, sent);
  Py_XDECREF(sent);
}

// False, with nothing held, where a handler raised meanwhile.
bool begin() {
  if (hold.depth++) return true;
  if (take_handlers()) return stand_in(), true;
  hold.depth = 0;
  InFlight raised;
  give_back();
  return false;
}
bool end() {
  if (--hold.depth) return true;
  auto* gone = std::exchange(hold.stand_in, nullptr);  // handlers may hold, too, and have a stand-in of their own
  bool well = give_back();
  pass_on(gone);
  return well;
}

// ------------------------------------------------------------------------------------------------------------ for Python

PyObject* note_signal(PyObject*, PyObject* const* arguments, Py_ssize_t) {
  long value = PyLong_AsLong(arguments[0]);
  for (auto& [number, object] : numbers)
    if (number == value) hold.arrived.push_back(object);
  Py_RETURN_NONE;
}
PyMethodDef note_definition = {"note", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(note_signal)), METH_FASTCALL,
                               "Note a signal."};

PyObject* take(PyObject*, PyObject*) {
  if (!hold.depth) Py_RETURN_NONE;
  int depth = std::exchange(hold.depth, 1);
  if (end()) Py_XDECREF(PyObject_CallNoArgs(do_nothing));  // Python looks for what was sent when a function begins
  for (bool holds = false; !holds;) {
    InFlight earlier;
    holds = begin();
  }
  hold.depth = depth;
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  if (!type) Py_RETURN_NONE;
  PyErr_NormalizeException(&type, &value, &traceback);
  if (traceback) PyException_SetTraceback(value, traceback);
  Py_DECREF(type), Py_XDECREF(traceback);
  return value;
}

PyObject* enter(PyObject*, PyObject*) { return begin() ? Py_NewRef(Py_None) : nullptr; }
PyObject* leave(PyObject*, PyObject* const*, Py_ssize_t) { return end() ? Py_NewRef(Py_False) : nullptr; }
PyMethodDef held_methods[] = {
    {"__enter__", enter, METH_NOARGS, nullptr},
    {"__exit__", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(leave)), METH_FASTCALL, nullptr},
    {nullptr, nullptr, 0, nullptr},
};
PyType_Slot held_slots[] = {{Py_tp_methods, held_methods}, {Py_tp_doc, const_cast<char*>("Holds inside a with statement.")}, {0, nullptr}};
PyType_Spec held_spec = {"djinn_interrupts.Held", sizeof(PyObject), 0, Py_TPFLAGS_DEFAULT, held_slots};

// A function that holds while it runs: from before its first bytecode until after its last.
struct Whole {
  PyObject_HEAD
  PyObject *function, *attributes;
};
PyObject* call(PyObject* self, PyObject* arguments, PyObject* named) {
  if (!begin()) return nullptr;
  PyObject* returned = PyObject_Call(reinterpret_cast<Whole*>(self)->function, arguments, named);
  if (end()) return returned;
  Py_XDECREF(returned);
  return nullptr;
}
PyObject* bind(PyObject* self, PyObject* object, PyObject*) {
  return object && object != Py_None ? PyMethod_New(self, object) : Py_NewRef(self);
}
PyObject* make(PyTypeObject* type, PyObject* arguments, PyObject*) {
  PyObject* function;
  if (!PyArg_ParseTuple(arguments, "O", &function)) return nullptr;
  auto* made = reinterpret_cast<Whole*>(type->tp_alloc(type, 0));
  if (made) made->function = Py_NewRef(function);
  return reinterpret_cast<PyObject*>(made);
}
int visit_parts(PyObject* self, visitproc visit, void* arg) {
  auto* whole = reinterpret_cast<Whole*>(self);
  Py_VISIT(whole->function);
  Py_VISIT(whole->attributes);
  Py_VISIT(Py_TYPE(self));
  return 0;
}
int clear_parts(PyObject* self) {
  auto* whole = reinterpret_cast<Whole*>(self);
  Py_CLEAR(whole->function);
  Py_CLEAR(whole->attributes);
  return 0;
}
void free_whole(PyObject* self) {
  PyObject_GC_UnTrack(self);
  clear_parts(self);
  auto* type = Py_TYPE(self);
  type->tp_free(self);
  Py_DECREF(type);
}
PyMemberDef whole_members[] = {
    {"__dictoffset__", T_PYSSIZET, offsetof(Whole, attributes), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};
PyGetSetDef whole_attributes[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, nullptr, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};
template <class F>
void* slot(F* function) { return reinterpret_cast<void*>(function); }
PyType_Slot whole_slots[] = {
    {Py_tp_new, slot(make)}, {Py_tp_call, slot(call)}, {Py_tp_descr_get, slot(bind)}, {Py_tp_traverse, slot(visit_parts)},
    {Py_tp_clear, slot(clear_parts)}, {Py_tp_dealloc, slot(free_whole)}, {Py_tp_members, whole_members}, {Py_tp_getset, whole_attributes},
    {Py_tp_doc, const_cast<char*>("Whole(function): a function that holds while it runs.")}, {0, nullptr},
};
PyType_Spec whole_spec = {"djinn_interrupts.Whole", sizeof(Whole), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, whole_slots};

PyObject* is_held(PyObject*, PyObject*) { return PyBool_FromLong(hold.depth); }
PyMethodDef functions[] = {
    {"take", take, METH_NOARGS, "Return the exception that arrived while this thread holds, None without one."},
    {"is_held", is_held, METH_NOARGS, "Return whether this thread holds."},
    {nullptr, nullptr, 0, nullptr},
};
PyModuleDef definition = {PyModuleDef_HEAD_INIT, "djinn_interrupts", "Exceptions from outside, held back.", -1, functions,
                          nullptr, nullptr, nullptr, nullptr};

// Signals that can have a handler.
bool find_signals(PyObject* signals) {
  PyObject* valid = PyObject_CallMethod(signals, "valid_signals", nullptr);
  PyObject* each = valid ? PyObject_GetIter(valid) : nullptr;
  Py_XDECREF(valid);
  while (PyObject* number = each ? PyIter_Next(each) : nullptr) {
    int value = int(PyLong_AsLong(number));
    if (value != SIGKILL && value != SIGSTOP) numbers.emplace_back(value, number);
  }
  Py_XDECREF(each);
  return !PyErr_Occurred();
}
PyObject* module() {
  PyObject* made = PyModule_Create(&definition);
  PyObject* signals = PyImport_ImportModule("_signal");
  PyObject* builtins = PyImport_ImportModule("builtins");
  PyObject* threading = PyImport_ImportModule("threading");
  PyObject* main = threading ? PyObject_CallMethod(threading, "main_thread", nullptr) : nullptr;
  PyObject* ident = main ? PyObject_GetAttrString(main, "ident") : nullptr;
  if (!made || !signals || !builtins || !ident || !find_signals(signals)) return nullptr;
  main_thread = PyLong_AsUnsignedLong(ident);
  Py_DECREF(threading), Py_DECREF(main), Py_DECREF(ident);
  get_handler = PyObject_GetAttrString(signals, "getsignal");
  set_handler = PyObject_GetAttrString(signals, "signal");
  note = PyCFunction_New(&note_definition, nullptr);
  PyObject* names = PyDict_New();
  PyDict_SetItemString(names, "__builtins__", builtins);
  do_nothing = PyRun_String("lambda: None", Py_eval_input, names, names);
  Py_DECREF(names), Py_DECREF(builtins), Py_DECREF(signals);
  PyObject* held = PyType_FromSpec(&held_spec);
  PyObject* whole = PyType_FromSpec(&whole_spec);
  if (!get_handler || !set_handler || !note || !do_nothing || !held || !whole) return nullptr;
  // Python frees the other thread states of a child; a child of a thread that holds has none of its own
  pthread_atfork(nullptr, nullptr, [] { hold.stand_in = nullptr, main_thread = PyThread_get_thread_ident(); });
  if (PyModule_AddObject(made, "Held", held) || PyModule_AddObject(made, "Whole", whole)) return nullptr;
  return made;
}
}  // namespace
}  // namespace djinn_interrupts

PyMODINIT_FUNC PyInit_djinn_interrupts() { return djinn_interrupts::module(); }
