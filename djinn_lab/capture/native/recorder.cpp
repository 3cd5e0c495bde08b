// The native recorder: laziness belongs to the storage, tensors are ordinary ones. One boxed fallback below autograd records each op of
// a captured cell as a node. recorder.py drives it and answers what is rare; see docs/architecture.md.
#include <set>
#include "attributes.h"
#include "autocast.h"
#include "generator.h"
#include "modules.h"

namespace djinn {
#ifdef DJINN_KEY_BACKEND
// A backend's key: composite kernels would win over a fallback, so every op gets the boxed kernel of its own. Two kinds of ops are seen
// at DeferredInit, above all else: factories, since BackendSelect would drop the key, and fused layers of nested tensors, whose kernels
// win over ours and would mix lazy weights into memory that torch reads. A dispatch mode of the user's sees both before the recorder does.
static std::vector<c10::RegistrationHandleRAII> registrations;
static const std::set<std::string> FUSED{"aten::_transformer_encoder_layer_fwd", "aten::_native_multi_head_attention"};
static void fallback_above(const c10::OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
  static const DispatchKeySet below{DispatchKeySet::FULL_AFTER, DispatchKey::DeferredInit};
  bool ours = info_of(op)->factory || keys.has(DispatchKey::NestedTensor);
  if (!ours || keys.has(DispatchKey::Python)) return op.redispatchBoxed(keys & below, stack);
  fallback(op, keys, stack);
}
static void register_ops() {
  auto& dispatcher = c10::Dispatcher::singleton();
  auto add = [&](const c10::OperatorName& name, DispatchKey key, c10::KernelFunction kernel) {
    registrations.push_back(dispatcher.registerImpl(name, key, std::move(kernel), std::nullopt, nullptr, "djinn"));
  };
  for (const auto& name : dispatcher.getAllOpNames()) {
    auto op = dispatcher.findOp(name);
    if (!op || !op->hasSchema() || name.name.rfind("aten::", 0) != 0) continue;
    if (op->hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd) && !op->hasKernelForDispatchKey(DispatchKey::CPU)) continue;
    add(name, KEY, c10::KernelFunction::makeFromBoxedFunction<&fallback>());
    bool tensors = false;
    for (const auto& argument : op->schema().arguments())
      if (argument.type()->str().find("Tensor") != std::string::npos) tensors = true;
    if ((!tensors && op->schema().returns().size()) || FUSED.count(name.name))
      add(name, DispatchKey::DeferredInit, c10::KernelFunction::makeFromBoxedFunction<&fallback_above>());
  }
}
TORCH_LIBRARY_IMPL(_, DeferredInit, library) { library.fallback(torch::CppFunction::makeFallthrough()); }
#else
static void register_ops() {}
TORCH_LIBRARY_IMPL(_, DJINN_KEY, library) { library.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }
#endif

static void set_capturing(bool on) {
  c10::impl::tls_set_dispatch_key_included(KEY, on);
  c10::impl::tls_set_dispatch_key_included(CUDA_RULES, on);
#ifdef DJINN_KEY_BACKEND
  c10::impl::tls_set_dispatch_key_included(DispatchKey::DeferredInit, on);
#endif
}

static bool is_captured_here() { return c10::impl::tls_is_dispatch_key_included(KEY) && !c10::impl::tls_is_dispatch_key_excluded(KEY); }

// Torch computes in between, on what tensors really are.
class Paused {
 public:
  void enter() { guards_.push_back(std::make_unique<Off>()); }
  void exit(const py::args&) { guards_.pop_back(); }

 private:
  std::vector<std::unique_ptr<Off>> guards_;
};

// Ops are recorded in between, although an op is being dispatched or recording is paused.
class Recording {
 public:
  void enter() {
    auto keys = c10::impl::tls_local_dispatch_key_set();
    guards_.push_back(std::make_unique<c10::impl::ForceDispatchKeyGuard>(keys.included_ | OURS, keys.excluded_ - OURS));
  }
  void exit(const py::args&) { guards_.pop_back(); }

 private:
  std::vector<std::unique_ptr<c10::impl::ForceDispatchKeyGuard>> guards_;
};

// Makes `tensor` look at `storage`: same object, same autograd graph, same Python object.
static void look_at(const Tensor& tensor, c10::intrusive_ptr<LazyStorage> storage, const Layout* layout, int64_t offset) {
  static const DispatchKeySet bits({DispatchKey::Conjugate, DispatchKey::Negative, DispatchKey::ZeroTensor});
  auto* impl = tensor.unsafeGetTensorImpl();
  auto keys = (impl->key_set() - bits) | DispatchKeySet(KEY);
  auto source = c10::make_intrusive<LazyImpl>(TensorImpl::VIEW, c10::Storage(std::move(storage)), keys, layout->meta);
  source->set_sizes_and_strides(layout->sizes, layout->strides, offset);
  if (layout->conjugate) source->_set_conj(true);
  if (layout->negative) source->_set_neg(true);
  if (typeid(*impl) == typeid(TensorImpl))  // LazyImpl has no fields of its own: from now on raw reads ask it
    *reinterpret_cast<const void**>(static_cast<void*>(impl)) = *reinterpret_cast<const void**>(static_cast<void*>(source.get()));
  impl->shallow_copy_from(source);
}
// How many tensors and others hold a memory; its Python object, which torch keeps for as long as the memory lives, is not one of them.
static int64_t users_of(const c10::StorageImpl* memory) {
  return int64_t(c10::raw::intrusive_ptr::use_count(const_cast<c10::StorageImpl*>(memory))) - (memory->pyobj_slot()->load_pyobj() ? 1 : 0);
}
static py::object python_storage(const at::Storage& storage) {
  if (!storage) return py::none();
  return py::reinterpret_steal<py::object>(THPStorage_Wrap(storage));
}
static Residency residency_of(const std::string& name) {
  for (int i = 0; i < 5; i++)
    if (name == residency_name(Residency(i))) return Residency(i);
  throw std::invalid_argument("no residency: " + name);
}
static Value value_of(const Tensor& tensor) {
  auto* impl = tensor.unsafeGetTensorImpl();
  TORCH_CHECK(is_lazy(impl), "not a lazy tensor");
  std::lock_guard<std::mutex> guard(lock);
  return {c10::intrusive_ptr<LazyStorage>::reclaim_copy(storage_of(impl)), layout_of(impl), impl->storage_offset()};
}
}  // namespace djinn

PYBIND11_MODULE(djinn_recorder, m) {
  using namespace djinn;
  using StoragePointer = c10::intrusive_ptr<LazyStorage>;
  register_ops();
  settle_default_generator();

  py::class_<LazyStorage, StoragePointer>(m, "Storage")
      .def_property_readonly("serial", [](LazyStorage& s) { return s.serial; })
      .def_property_readonly("nbytes", [](LazyStorage& s) { return int64_t(s.nbytes()); })
      .def_property_readonly("base_id", [](LazyStorage& s) -> py::object { return s.base ? py::object(py::int_(s.base->id)) : py::none(); })
      .def_property_readonly("usable", [](LazyStorage& s) { return s.usable(); })
      .def_property_readonly("layout", [](LazyStorage& s) { return s.layout ? python_layout(s.layout) : py::none(); })
      .def_property_readonly("owner", [](LazyStorage& s) { return s.recorder->owner; })
      .def_property_readonly("residency", [](LazyStorage& s) { return residency_name(s.residency); })
      .def_readwrite("version", &LazyStorage::version)
      .def_property(
          "host", [](LazyStorage& s) { return s.rare ? python_storage(s.rare->host) : py::none(); },
          [](LazyStorage& s, py::object host) { host.is_none() ? s.forget_host() : s.set_host(torch::createStorage(host.ptr())); })
      .def_property_readonly("current_host", [](LazyStorage& s) {
        at::Storage found;
        {
          std::lock_guard<std::mutex> guard(lock);
          if (s.host_is_current()) found = s.rare->host;
        }
        return found ? python_storage(found) : py::none();
      }, "The host's bytes, None where the pool's are newer.")
      .def("keep_host", [](LazyStorage& s, py::object host, int64_t version) {
        at::Storage memory = torch::createStorage(host.ptr());
        std::lock_guard<std::mutex> guard(lock);
        if (s.version == version) s.set_host(std::move(memory));
      }, "Take bytes of the pool as the host's, unless an op of another thread was to change them since `version`.")
      .def("host_is_current", [](LazyStorage& s) { return s.host_is_current(); })
      .def_property_readonly("host_users", [](LazyStorage& s) { return s.rare && s.rare->host ? users_of(s.rare->host.unsafeGetStorageImpl()) - 2 : 0; },
                             "How many others hold the host's bytes.")
      .def_property(
          "lost", [](LazyStorage& s) -> py::object { return s.rare && !s.rare->lost.empty() ? py::object(py::str(s.rare->lost)) : py::none(); },
          [](LazyStorage& s, py::object reason) { s.more().lost = reason.is_none() ? "" : reason.cast<std::string>(); })
      .def_property(
          "exposure",
          [](LazyStorage& s) { return s.exposed() ? py::reinterpret_borrow<py::object>(s.rare->exposure) : py::none(); },
          [](LazyStorage& s, py::object exposure) {
            auto* old = s.more().exposure;
            s.rare->exposure = exposure.is_none() ? nullptr : exposure.release().ptr();
            Py_XDECREF(old);
          })
      .def_property_readonly("handle", [](LazyStorage& s) {
        if (!s.more().handle) s.rare->handle = py::module_::import("djinn_lab.capture.lazy").attr("Handle")().release().ptr();
        return py::reinterpret_borrow<py::object>(s.rare->handle);
      })
      .def("written_on_host",
           [](LazyStorage& s) {  // the host's bytes were changed: the pool's copy is old from now on
             std::lock_guard<std::mutex> guard(lock);
             s.version++;
             if (s.rare) s.rare->host_version = s.version;
             s.recorder->drop_base(&s);
           })
      .def_property_readonly("just_allocated", [](LazyStorage& s) {
        std::lock_guard<std::mutex> guard(lock);
        return s.recorder->is_just_allocated(&s);
      })
      .def_property_readonly("covered", [](LazyStorage& s) { return int64_t(s.covered); })
      .def("take_base", [](LazyStorage& s, LazyStorage& other) {
        std::lock_guard<std::mutex> guard(lock);
        s.recorder->drop_base(&s);
        std::lock_guard<std::mutex> deaths(deaths_lock);
        std::swap(s.base, other.base);
        s.base->owner = &s;
        s.layout = other.layout;
        s.covered = s.nbytes();
      }, "The pool's copy of another storage, of this one's size, is this one's from now on.")
      .def("lose", [](LazyStorage& s, const std::string& reason) {
        std::lock_guard<std::mutex> guard(lock);
        s.recorder->drop_base(&s);
        s.more().lost = reason;
      }, "Nobody has its bytes.")
      .def("restore_host", [](LazyStorage& s, py::object host, int64_t version) {
        std::lock_guard<std::mutex> guard(lock);
        s.version = version;
        if (host.is_none()) s.forget_host();
        else s.set_host(torch::createStorage(host.ptr()));
      })
      .def("forget_pool_copy",
           [](LazyStorage& s) {
             std::lock_guard<std::mutex> guard(lock);
             s.recorder->drop_base(&s);
           })
      .def("leave_to_host",
           [](LazyStorage& s) {
             std::lock_guard<std::mutex> guard(lock);
             if (s.base) s.base->spare = s.rare->host;
             s.recorder->drop_base(&s);
           }, "Pending nodes read the pool's copy, which goes then; the host's bytes, which are current, are sent again when they are needed.")
      .def("send", [](LazyStorage& s, py::object layout, std::optional<std::string> blob, std::optional<py::bytes> inline_bytes) {
        auto* known = layout_from_python(layout);
        std::lock_guard<std::mutex> guard(lock);
        s.recorder->drop_base(&s);
        s.layout = known;
        auto* base = s.recorder->new_base(&s, State::source);
        if (blob) base->blob = *blob;
        if (inline_bytes) base->inline_bytes = std::string(*inline_bytes), base->has_inline = true;
      }, "The pool's copy begins with these bytes, which travel with the first program that needs them.");

  py::class_<WeakStorage>(m, "WeakStorage")
      .def(py::init([](const StoragePointer& storage) { return WeakStorage{c10::weak_intrusive_ptr<LazyStorage>(storage)}; }))
      .def("__call__", [](WeakStorage& weak) { return weak.storage.lock(); }, "The storage, None when it is gone.");

  py::class_<Value>(m, "Value")
      .def(py::init([](StoragePointer storage, py::object layout, int64_t offset) {
        return Value{std::move(storage), layout_from_python(layout), offset};
      }))
      .def_property_readonly("storage", [](Value& v) { return v.storage; })
      .def_property_readonly("layout", [](Value& v) { return python_layout(v.layout); })
      .def_readonly("offset", &Value::offset)
      .def("covers_storage",
           [](Value& v) {
             return v.offset == 0 && v.layout->nbytes == int64_t(v.storage->nbytes()) && !v.layout->conjugate && !v.layout->negative &&
                 python_layout(v.layout).attr("dense").cast<bool>();
           })
      .def("key", [](Value& v) { return py::make_tuple(v.storage->serial, reinterpret_cast<uint64_t>(v.layout), v.offset); })
      .def("__eq__", [](Value& v, Value& w) { return v.storage == w.storage && v.layout == w.layout && v.offset == w.offset; })
      .def("__hash__", [](Value& v) { return mix(mix(v.storage->serial, reinterpret_cast<uint64_t>(v.layout)), uint64_t(v.offset)); });

  py::class_<Flight>(m, "Flight")
      .def_property_readonly("nodes", [](Flight& f) { return f.nodes; })
      .def("position", [](Flight& f, size_t node) { return node < f.kept.size() ? size_t(f.kept[node]) : SIZE_MAX; },
           "The place of one of its nodes among those recorded; SIZE_MAX for none of them.");
  py::class_<ModuleNames>(m, "ModuleNames");
  py::class_<Paused>(m, "Paused").def(py::init<>()).def("__enter__", &Paused::enter).def("__exit__", &Paused::exit);

  py::class_<Recording>(m, "Recording").def(py::init<>()).def("__enter__", &Recording::enter).def("__exit__", &Recording::exit);

  py::class_<Recorder, std::unique_ptr<Recorder, py::nodelete>>(m, "Recorder")
      .def(py::init<py::object>())
      .def_property_readonly("pending", [](Recorder& r) { return r.pending(); })
      .def_readonly("ops_recorded", &Recorder::ops_recorded)
      .def_readonly("plans_made", &Recorder::plans_made)
      .def_readwrite("look_at", &Recorder::look_at)
      .def_readwrite("patience", &Recorder::patience)
      .def_readwrite("host_only", &Recorder::host_only)
      .def_readwrite("for_accelerators", &Recorder::for_accelerators)
      .def_readwrite("replayable", &Recorder::replayable)
      .def_readwrite("host_dirty", &Recorder::host_dirty)
      .def_readwrite("keeps_histories", &Recorder::keeps_histories)
      .def_readwrite("draws_open", &Recorder::draws_open)
      .def_property("capturing", [](Recorder& r) { return r.capturing.load(); }, [](Recorder& r, bool on) { r.capturing = on; })
      .def_property_readonly("captures_here", [](Recorder& r) { return capturing_recorder == &r && is_captured_here(); })
      .def_property_readonly("line", [](Recorder& r) { return r.scopes.line(); })
      .def_property_readonly("begins_call", [](Recorder& r) { return r.begins_call; })
      .def_property_readonly("calls", [](Recorder& r) { return r.scopes.calls; })
      .def("new_storage",
           [](Recorder& r, int64_t nbytes, py::object layout, const std::string& residency) {
             auto* known = layout_from_python(layout);
             std::lock_guard<std::mutex> guard(lock);
             auto storage = c10::make_intrusive<LazyStorage>(&r, r.new_serial(), nbytes, known, residency_of(residency));
             if (!lazy_storage_table) lazy_storage_table = *reinterpret_cast<const void* const*>(storage.get());
             return storage;
           }, "Memory that the pool has no copy of yet.")
      .def("ids",
           [](Recorder& r, const std::vector<Value>& values) {
             std::vector<uint64_t> ids;
             r.scopes.look();
             std::lock_guard<std::mutex> guard(lock);
             for (auto& value : values) ids.push_back(r.id_of(value.storage.get(), value.layout, value.offset));
             return ids;
           }, "Names of values for a program's fetch list; their storages must be usable.")
      .def("assemble",
           [](Recorder& r, const std::vector<uint64_t>& fetch, std::optional<py::bytes> state) {
             return r.assemble(fetch, state ? std::optional<std::string>(std::string(*state)) : std::nullopt);
           }, "(program or None, nodes, ids to release, flight) of what is pending and needed; begins a new segment.",
           py::arg("fetch"), py::arg("state"))
      .def("settle", [](Recorder& r, const Flight& flight, size_t executed, bool arrived, const std::string& reason) {
        r.settle(flight, executed, arrived, reason);
        auto written = r.take_written(flight, executed);
        for (auto& late : {&written.pending, &written.not_run}) put_back(*late, r.put_back);
      })
      .def("lose_pending", [](Recorder& r, const std::string& reason) {
        Written late;
        {
          std::lock_guard<std::mutex> guard(lock);
          late = r.histories.take(r.segment, 0);  // unless a part before it failed, which has them by now
        }
        put_back(late, r.put_back);
        r.lose_pending(reason);
      })
      .def("lose_pool", &Recorder::lose_pool)
      .def("lose_held", &Recorder::lose_held)
      .def("bytes_of", [](Recorder& r, const Flight& flight, uint64_t id) {
        auto [host, exposure] = r.bytes_of(flight, id);
        return py::make_tuple(python_storage(host), exposure ? py::reinterpret_borrow<py::object>(exposure) : py::none());
      }, "Memory with a source's bytes as a flight's program reads it, None where the host has it not; its exposure, if any.")
      .def("storages",
           [](Recorder& r) {
             std::vector<StoragePointer> found;
             std::lock_guard<std::mutex> guard(lock);
             std::lock_guard<std::mutex> deaths(deaths_lock);
             for (auto* base : r.living())
               if (base->owner && c10::raw::intrusive_ptr::use_count(base->owner) > 0)
                 found.push_back(StoragePointer::reclaim_copy(base->owner));
             return found;
           }, "Every living storage that the pool has a copy of, or will have.")
      .def("pending_integers",
           [](Recorder& r, size_t at_most) {
             std::vector<StoragePointer> found;
             std::lock_guard<std::mutex> guard(lock);
             std::lock_guard<std::mutex> deaths(deaths_lock);
             for (auto* base : r.living()) {
               if (base->state != State::pending || !base->layout || !base->layout->sizes.empty()) continue;
               if (!c10::isIntegralType(base->layout->dtype, true) || !base->owner || !base->owner->usable()) continue;
               if (c10::raw::intrusive_ptr::use_count(base->owner) > 0) found.push_back(StoragePointer::reclaim_copy(base->owner));
               if (found.size() == at_most) break;
             }
             return found;
           }, "Living 0-dim storages of whole numbers that pending nodes make.")
      .def("add_twin",
           [](Recorder& r, const Tensor& tensor, StoragePointer storage, bool once) {
             auto* impl = tensor.unsafeGetTensorImpl();
             std::lock_guard<std::mutex> guard(lock);
             auto& found = r.twins[impl->unsafe_storage().unsafeGetStorageImpl()];
             for (auto it = found.begin(); it != found.end();) it = it->address == impl || it->tensor.expired() ? found.erase(it) : it + 1;
             uint32_t version = impl->is_inference() ? 0 : impl->version_counter().current_version();
             found.push_back({c10::weak_intrusive_ptr<TensorImpl>(tensor.getIntrusivePtr()), impl, version, std::move(storage), 0, once});
           })
      .def("has_twin", [](Recorder& r, const Tensor& tensor) {
        std::lock_guard<std::mutex> guard(lock);
        return r.find_twin(tensor.unsafeGetTensorImpl()) != nullptr;
      })
      .def("forget_twin",
           [](Recorder& r, const Tensor& tensor) {
             std::lock_guard<std::mutex> guard(lock);
             r.forget_twins(tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl());
           })
      .def("clear_twins",
           [](Recorder& r) {
             decltype(r.twins) gone;
             std::lock_guard<std::mutex> guard(lock);
             gone.swap(r.twins);
           })
      .def("enter_cell",
           [](Recorder& r, const std::string& cell, const std::string& file) {
             std::lock_guard<std::mutex> guard(lock);
             r.scopes.enter_cell(cell, file);
             r.made_before = r.last_serial();
           })
      .def("take_histories", [](Recorder& r, bool puts_back) {
        Written all;
        {
          std::lock_guard<std::mutex> guard(lock);
          all = r.histories.take_all();
        }
        if (puts_back) put_back(all, r.put_back);
      }, "Forget what tensors that the cell wrote were to autograd. `puts_back`: they are that again.")
      .def("renew_views", [](Recorder& r, const std::vector<Tensor>& views) {
        for (auto& view : views) renew_view(view, r.put_back);
        r.put_back.clear();
      }, "Views are a part of what their bases are to autograd now, which were put back.")
      .def("leave_histories", [](Recorder& r) {
        std::lock_guard<std::mutex> guard(lock);
        r.histories.leave();
      })
      .def("remember_history", [](Recorder& r, const Tensor& tensor) {
        std::lock_guard<std::mutex> guard(lock);
        r.histories.remember(tensor, r.segment, r.pending());
      }, "Something else than an op of the graph is about to change what a tensor is to autograd.")
      .def("begin_part",
           [](Recorder& r) {
             std::lock_guard<std::mutex> guard(lock);
             r.made_before = r.last_serial();
           })
      .def("made_in_part", [](Recorder& r, LazyStorage& s) { return s.made_since(r.made_before); }, "An op of this part made the memory.")
      .def("begin_optimizer", [](Recorder& r) { r.scopes.in_optimizer = true, r.scopes.optimizer_line = r.scopes.line(); })
      .def("end_optimizer", [](Recorder& r) { r.scopes.in_optimizer = false; })
      .def("module_names", [](Recorder& r, py::dict names) {
        auto made = std::make_unique<ModuleNames>();
        for (auto item : names)
          made->paths[reinterpret_cast<PyObject*>(item.first.cast<uint64_t>())] = r.scopes.path_id(item.second.cast<std::string>());
        return made;
      });

  m.def("prepare", [](py::object describe, py::object plan, py::object dispatch, py::object outside, py::object allow_cut, py::object run_dynamic,
                      py::object draw, py::object stream, py::object resize, py::object materialize, py::object record, py::object root,
                      py::object module) {
    ask = new Questions{describe, plan, dispatch, outside, allow_cut, run_dynamic, draw, stream, resize, materialize, record};
    enter_root = new py::object(root);
    enter_module = new py::object(module);
  });
  m.def("set_capturing", [](Recorder* recorder) -> Recorder* {
    if (!recorder && !c10::impl::tls_is_dispatch_key_included(KEY)) return nullptr;  // another thread's cell goes on
    auto* before = std::exchange(capturing_recorder, recorder);
    set_capturing(recorder != nullptr);
    return before;
  }, py::arg("recorder").none(true), py::return_value_policy::reference,
  "Record what this thread does from now on, None: no more. Returns the recorder that did until now, or None.");
  m.def("leave_after_fork", [] {
    capturing_recorder = nullptr;
    set_capturing(false);
  });
  m.def("is_captured_here", [] { return capturing_recorder && is_captured_here(); });
  m.def("is_lazy", [](py::handle object) {
    return THPVariable_Check(object.ptr()) && is_lazy(THPVariable_Unpack(object.ptr()).unsafeGetTensorImpl());
  });
  m.def("value_of", &value_of);
  m.def("storage_of", [](const Tensor& tensor) {
    TORCH_CHECK(is_lazy(tensor.unsafeGetTensorImpl()), "not a lazy tensor");
    return c10::intrusive_ptr<LazyStorage>::reclaim_copy(storage_of(tensor.unsafeGetTensorImpl()));
  });
  m.def("owner_of", [](const Tensor& tensor) {
    TORCH_CHECK(is_lazy(tensor.unsafeGetTensorImpl()), "not a lazy tensor");
    return py::reinterpret_borrow<py::object>(storage_of(tensor.unsafeGetTensorImpl())->recorder->owner);
  });
  m.def("wrap", [](const Value& value, std::optional<Tensor> base) {
    auto* layout = value.layout;
    at::native::checkInBoundsForStorage<int64_t>(layout->sizes, layout->strides, value.offset, layout->meta, c10::Storage(value.storage));
    return new_tensor(value.layout, value.offset, value.storage, base ? base->unsafeGetTensorImpl() : nullptr);
  }, py::arg("value"), py::arg("base") = std::nullopt);
  m.def("look_at", [](const Tensor& tensor, const Value& value) { look_at(tensor, value.storage, value.layout, value.offset); },
        "Make a tensor name a value, keeping its identity and its autograd graph.");
  m.def("record", [](py::object function, py::tuple args, py::dict kwargs) {
    Recording recording;
    recording.enter();
    record_now = true;
    try {
      py::object returned = function(*args, **kwargs);
      record_now = false;
      return returned;
    } catch (...) {
      record_now = false;
      throw;
    }
  }, "Record one op as it is; its inputs must be usable.");
  m.def("become", [](const Tensor& tensor, const Tensor& other) {
    tensor.unsafeGetTensorImpl()->shallow_copy_from(other.getIntrusivePtr());
  }, "Make a tensor be what another is, keeping its identity and its autograd graph.");
  m.def("resizable", [](py::object memory) {
    auto held = torch::createStorage(memory.ptr());
    if (held.resizable()) return memory;
    auto nbytes = held.nbytes();
    return python_storage({c10::Storage::use_byte_size_t(), nbytes, borrowed(std::move(held)), c10::GetCPUAllocator(), true});
  }, "The same bytes as a storage that torch may let grow, as memory that its ops allocate.");
  m.def("capturing_owner", [] { return capturing_recorder ? py::reinterpret_borrow<py::object>(capturing_recorder->owner) : py::none(); });
  m.def("storage_users", [](const Tensor& tensor) { return users_of(tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl()); });
  m.def("module_call", &module_call, "What stands in for torch.nn.Module.__call__ in a cell; it calls what is given from now on.");
  m.def("set_in_type", [](py::handle type, py::str name, py::object value) {
    auto* changed = reinterpret_cast<PyTypeObject*>(type.ptr());
    if (PyDict_SetItem(changed->tp_dict, name.ptr(), value.ptr())) throw py::error_already_set();
    PyType_Modified(changed);
  }, "Set an attribute of a type that Python does not let one change.");
  py::class_<Places>(m, "Places", "Attributes of modules and types, by owner and name.")
      .def(py::init<const std::vector<std::pair<py::object, py::str>>&, py::object>(), py::arg("places"), py::arg("missing"))
      .def("read", &Places::read, "What is there, in the owners themselves; `missing` where nothing is.")
      .def("write", &Places::write, py::arg("values"), "Set them all, and delete those that are `missing`.");
  m.attr("variant") = py::str(KEY == DispatchKey::Fake ? "fake" : "backend");
}
