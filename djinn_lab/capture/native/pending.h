// Values, nodes and programs of one recorder.
#pragma once
#include "segment.h"

namespace djinn {
std::mutex lock;
std::mutex deaths_lock;
const void* lazy_storage_table = nullptr;

// -------------------------------------------------------------------------------------------------------------- layouts
inline const char* dtype_name(at::ScalarType dtype) {
  switch (dtype) {
    case at::kBool: return "bool";
    case at::kByte: return "uint8";
    case at::kChar: return "int8";
    case at::kShort: return "int16";
    case at::kInt: return "int32";
    case at::kLong: return "int64";
    case at::kUInt16: return "uint16";
    case at::kUInt32: return "uint32";
    case at::kUInt64: return "uint64";
    case at::kHalf: return "float16";
    case at::kBFloat16: return "bfloat16";
    case at::kFloat: return "float32";
    case at::kDouble: return "float64";
    case at::kComplexHalf: return "complex32";
    case at::kComplexFloat: return "complex64";
    case at::kComplexDouble: return "complex128";
    case at::kFloat8_e4m3fn: return "float8_e4m3fn";
    case at::kFloat8_e5m2: return "float8_e5m2";
    default: return c10::toString(dtype);
  }
}

inline std::unordered_multimap<uint64_t, Layout*> interned;
inline std::unordered_map<PyObject*, const Layout*> layouts_of_python;  // guarded by the GIL

inline const Layout* intern(at::ScalarType dtype, at::IntArrayRef sizes, at::IntArrayRef strides, bool conjugate, bool negative) {
  uint64_t hash = mix(mix(uint64_t(dtype), conjugate + 2 * negative), sizes.size());
  for (auto size : sizes) hash = mix(hash, uint64_t(size));
  for (auto stride : strides) hash = mix(hash, uint64_t(stride));
  auto range = interned.equal_range(hash);
  for (auto it = range.first; it != range.second; ++it) {
    auto* found = it->second;
    if (found->dtype == dtype && found->conjugate == conjugate && found->negative == negative &&
        at::IntArrayRef(found->sizes) == sizes && at::IntArrayRef(found->strides) == strides)
      return found;
  }
  auto* layout = new Layout;
  layout->dtype = dtype;
  layout->meta = c10::scalarTypeToTypeMeta(dtype);
  layout->sizes.assign(sizes.begin(), sizes.end());
  layout->strides.assign(strides.begin(), strides.end());
  layout->conjugate = conjugate;
  layout->negative = negative;
  layout->numel = c10::multiply_integers(sizes);
  layout->nbytes = layout->numel * int64_t(layout->meta.itemsize());
  layout->span_bytes = 0;
  if (layout->numel) {
    int64_t last = 0;
    for (size_t i = 0; i < sizes.size(); i++) last += (sizes[i] - 1) * strides[i];
    layout->span_bytes = (last + 1) * int64_t(layout->meta.itemsize());
  }
  Writer writer;
  writer.array(3);
  writer.text(dtype_name(dtype));
  writer.array(sizes.size());
  for (auto size : sizes) writer.integer(size);
  writer.array(strides.size());
  for (auto stride : strides) writer.integer(stride);
  layout->packed = std::move(writer.data);
  interned.emplace(hash, layout);
  return layout;
}
inline const Layout* layout_of(const TensorImpl* impl) {
  return intern(impl->dtype().toScalarType(), impl->sizes(), impl->strides(), is_conjugate(impl), is_negative(impl));
}
inline const Layout* in_memory(const Layout* layout) {
  return layout->conjugate || layout->negative ? intern(layout->dtype, layout->sizes, layout->strides, false, false) : layout;
}

inline py::object python_layout(const Layout* layout) {
  if (!layout->python) {
    static auto& make = *new py::object(py::module_::import("djinn_lab.capture.values").attr("Layout").attr("of"));
    py::tuple sizes(layout->sizes.size()), strides(layout->strides.size());
    for (size_t i = 0; i < layout->sizes.size(); i++) {
      sizes[i] = py::int_(layout->sizes[i]);
      strides[i] = py::int_(layout->strides[i]);
    }
    auto dtype = py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(torch::getTHPDtype(layout->dtype)));
    py::object made = make(dtype, sizes, strides, layout->conjugate, layout->negative);
    layouts_of_python[made.ptr()] = layout;
    const_cast<Layout*>(layout)->python = made.release().ptr();
  }
  return py::reinterpret_borrow<py::object>(layout->python);
}
inline c10::SmallVector<int64_t, 5> integers(const py::tuple& given) {
  c10::SmallVector<int64_t, 5> made;
  for (py::handle item : given) made.push_back(item.cast<int64_t>());
  return made;
}
inline const Layout* layout_from_python(py::handle given) {
  auto found = layouts_of_python.find(given.ptr());
  if (found != layouts_of_python.end()) return found->second;
  auto sizes = integers(given.attr("shape")), strides = integers(given.attr("stride"));
  auto dtype = reinterpret_cast<THPDtype*>(given.attr("dtype").ptr())->scalar_type;
  bool conjugate = given.attr("conjugate").cast<bool>(), negative = given.attr("negative").cast<bool>();
  const Layout* layout;
  {
    std::lock_guard<std::mutex> guard(lock);
    layout = intern(dtype, sizes, strides, conjugate, negative);
  }
  layouts_of_python[given.ptr()] = layout;  // interned on that side, so it lives as long as the process
  if (!layout->python) const_cast<Layout*>(layout)->python = given.inc_ref().ptr();
  return layout;
}

// ------------------------------------------------------------------------------------------------------------- storages
inline std::vector<PyObject*> abandoned;  // what dead storages held; guarded by the deaths' lock

// Torch's own resizing asks for memory that a lazy storage does not have: the size is noted, and Recorder sees to it.
struct NoMemory final : c10::Allocator {
  at::DataPtr allocate(size_t) override { return at::DataPtr(nullptr, at::kCPU); }
  void copy_data(void*, const void*, size_t) const override {}
};
inline NoMemory no_memory;

inline LazyStorage::LazyStorage(Recorder* recorder, uint64_t serial, int64_t nbytes, const Layout* layout, Residency residency)
    : StorageImpl(use_byte_size_t(), c10::SymInt(nbytes), at::DataPtr(nullptr, at::kCPU), &no_memory, true),
      recorder(recorder), serial(serial), layout(layout), covered(size_t(nbytes)), residency(residency) {}
inline LazyStorage::~LazyStorage() { give_up(); }
inline void LazyStorage::release_resources() {
  give_up();
  StorageImpl::release_resources();
}
inline void LazyStorage::give_up() {
  if (!base && !rare) return;
  bool in_use = base && !base->spare && host_is_current() && !exposed() && recorder->capturing;  // by a pending node, perhaps
  auto gone = std::move(rare);  // freed without the lock
  std::lock_guard<std::mutex> guard(deaths_lock);
  if (gone && gone->exposure) abandoned.push_back(gone->exposure);
  if (gone && gone->handle) abandoned.push_back(gone->handle);
  if (base) {
    if (in_use) base->spare = gone->host;
    base->owner = nullptr;
    recorder->died(base);
    base = nullptr;
  }
}
inline at::DataPtr borrowed(at::Storage memory) {
  void* address = memory.mutable_data();
  auto* keep = new at::Storage(std::move(memory));
  return {address, keep, [](void* kept) { delete static_cast<at::Storage*>(kept); }, at::kCPU};
}
inline void LazyStorage::point_at_host() {
  set_data_ptr_noswap(borrowed(rare->host));
  if (nbytes() != 0) set_resizable(false);  // torch's own resizing would copy these bytes to where there is no memory
}
inline void LazyStorage::set_host(at::Storage host) {
  more().host = std::move(host);
  point_at_host();
  rare->host_version = version;
}
inline void LazyStorage::forget_host() {
  if (!rare || !rare->host) return;
  set_data_ptr_noswap(at::DataPtr(nullptr, at::kCPU));
  set_resizable(true);
  rare->host = at::Storage();
  rare->host_version = -1;
}

inline Tensor new_tensor(const Layout* layout, int64_t offset, c10::intrusive_ptr<LazyStorage> storage, const TensorImpl* base) {
  static const DispatchKeySet bits({DispatchKey::Conjugate, DispatchKey::Negative, DispatchKey::ZeroTensor});
  auto tensor = base && !const_cast<TensorImpl*>(base)->is_inference()
      ? at::detail::make_tensor<LazyImpl>(TensorImpl::VIEW, c10::Storage(std::move(storage)), base->key_set() - bits, layout->meta)
      : at::detail::make_tensor<LazyImpl>(c10::Storage(std::move(storage)), TENSOR_KEYS, layout->meta);
  auto* impl = tensor.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(layout->sizes, layout->strides, offset);
  if (C10_UNLIKELY(layout->conjugate)) impl->_set_conj(true);
  if (C10_UNLIKELY(layout->negative)) impl->_set_neg(true);
  return tensor;
}
inline c10::intrusive_ptr<TensorImpl> LazyImpl::shallow_copy_and_detach(const c10::VariableVersion& version, bool allow) const {
  auto impl = c10::make_intrusive<LazyImpl>(c10::Storage(unsafe_storage()), key_set(), dtype());
  copy_tensor_metadata(this, impl.get(), version, allow);
  impl->refresh_numel();
  impl->refresh_contiguous();
  return impl;
}

// --------------------------------------------------------------------------------------------------------------- values
inline Recorder::Recorder(py::object owner) : owner(owner.release()) {}
inline Recorder::~Recorder() = default;

inline Base* Recorder::new_base(LazyStorage* storage, State state) {
  auto* base = new Base{new_id(), storage->layout, state, storage->residency};
  base->owner = storage;
  storage->base = base;
  values_.push_back({base, true});
  return base;
}
inline c10::intrusive_ptr<LazyStorage> Recorder::fresh_storage(const Layout* layout, State state, Residency residency) {
  auto storage = c10::make_intrusive<LazyStorage>(this, ++last_serial_, layout ? layout->span_bytes : 0, layout, residency);
  if (C10_UNLIKELY(!lazy_storage_table)) lazy_storage_table = *reinterpret_cast<const void* const*>(storage.get());
  new_base(storage.get(), state);
  return storage;
}
inline void Recorder::died(Base* base) { deaths_.push_back(base); }
inline void Recorder::drop_base(LazyStorage* storage) {
  auto* base = storage->base;
  if (!base) return;
  std::lock_guard<std::mutex> guard(deaths_lock);
  base->usable = false;
  base->owner = nullptr;
  storage->base = nullptr;
  storage->views.clear();
  died(base);
}
inline Base* Recorder::find_base(uint64_t id) {
  if (id >= first_pending_) return id < next_id_ && values_[id - first_pending_].is_base ? values_[id - first_pending_].base : nullptr;
  auto found = held_.find(id);
  return found == held_.end() ? nullptr : found->second;
}
inline void Recorder::lose(uint64_t id, const std::string& reason) {
  auto* base = find_base(id);
  if (!base) return;
  base->usable = false;
  std::lock_guard<std::mutex> guard(deaths_lock);
  if (base->owner) base->owner->more().lost = reason;
}
inline std::vector<Base*> Recorder::living() {
  std::vector<Base*> found;
  for (auto& [id, base] : held_) found.push_back(base);
  for (auto& value : values_)
    if (value.is_base && value.base) found.push_back(value.base);
  return found;
}

static const int kViewsLookedAt = 32;

inline bool Recorder::find_id(LazyStorage* storage, const TensorImpl* impl, Input& input) {
  input.storage = storage;
  input.offset = impl->storage_offset();
  auto* base = storage->base;
  if (C10_LIKELY(input.offset == 0 && matches(base->layout, impl))) {
    input.id = base->id;
    input.layout = base->layout;
    return true;
  }
  if (storage->views_segment == segment) {
    auto& views = storage->views;
    for (int i = int(views.size()) - 1, last = std::max(0, int(views.size()) - kViewsLookedAt); i >= last; i--)
      if (views[i].offset == input.offset && matches(views[i].layout, impl)) {
        input.id = views[i].id;
        input.layout = views[i].layout;
        return true;
      }
  }
  input.layout = layout_of(impl);
  input.id = derive(storage, input.layout, input.offset);
  return false;
}
inline uint64_t Recorder::id_of(LazyStorage* storage, const Layout* layout, int64_t offset) {
  auto* base = storage->base;
  if (offset == 0 && base->layout == layout) return base->id;
  if (storage->views_segment == segment)
    for (auto& view : storage->views)
      if (view.offset == offset && view.layout == layout) return view.id;
  return derive(storage, layout, offset);
}
inline uint64_t Recorder::note_view(LazyStorage* storage, const Layout* layout, int64_t offset) {
  if (storage->views_segment != segment) {
    storage->views.clear();
    storage->views_segment = segment;
  }
  uint64_t id = new_id();
  values_.push_back({storage->base, false});
  storage->views.push_back({id, offset, layout});
  return id;
}
inline uint64_t Recorder::push_view(LazyStorage* storage, uint64_t from, const std::string& packed, const Layout* layout, const char* name) {
  auto& plan = view_plans_[packed + std::string(reinterpret_cast<const char*>(&layout), sizeof layout)];
  if (!plan) {
    plan = std::make_unique<Plan>();
    plan->packed = packed;
    plan->n_inputs = plan->n_new = 1;
    plan->name = name;
    plan->outs.push_back({OutKind::view, layout, 0, 0});
  }
  positions_.push_back(words_.size());
  words_.insert(words_.end(), {reinterpret_cast<uint64_t>(plan.get()), scopes.current(), next_id_, from});
  return 0;
}
// Records `layout` at `offset` as the strided view of the storage that it is.
inline uint64_t Recorder::derive(LazyStorage* storage, const Layout* layout, int64_t offset) {
  auto hole = [](Writer& writer) { writer.map(1), writer.text("t"), writer.text("tensor"); };
  auto turned = [&](uint64_t from, const Layout* now, const char* op, bool conjugate, bool negative, int64_t at) {
    Writer writer;
    writer.array(3), writer.text(op), writer.array(1), hole(writer), writer.map(0);
    auto* made = intern(now->dtype, now->sizes, now->strides, conjugate, negative);
    push_view(storage, from, writer.data, made, op);
    return std::make_pair(note_view(storage, made, at), made);
  };
  auto strided = [&](uint64_t from, const Layout* made, int64_t at) {
    Writer writer;
    writer.array(3), writer.text("aten.as_strided.default"), writer.array(4), hole(writer);
    writer.array(made->sizes.size());
    for (auto size : made->sizes) writer.integer(size);
    writer.array(made->strides.size());
    for (auto stride : made->strides) writer.integer(stride);
    writer.integer(at), writer.map(0);
    push_view(storage, from, writer.data, made, "aten.as_strided.default");
    return note_view(storage, made, at);
  };
  const char *conj = "aten._conj.default", *neg = "aten._neg_view.default";
  auto* now = storage->base->layout;
  uint64_t id = storage->base->id;
  if (now->conjugate) std::tie(id, now) = turned(id, now, conj, false, now->negative, 0);
  if (now->negative) std::tie(id, now) = turned(id, now, neg, false, false, 0);
  if (now->dtype != layout->dtype) {
    int64_t bytes = int64_t(storage->nbytes()), one = 1;
    int64_t before = bytes / int64_t(now->meta.itemsize()), after = bytes / int64_t(layout->meta.itemsize());
    id = strided(id, intern(now->dtype, before, one, false, false), 0);
    Writer writer;
    writer.array(3), writer.text("aten.view.dtype"), writer.array(2), hole(writer);
    writer.map(3), writer.text("t"), writer.text("atom"), writer.text("kind"), writer.text("dtype"), writer.text("name"),
        writer.text(dtype_name(layout->dtype));
    writer.map(0);
    now = intern(layout->dtype, after, one, false, false);
    push_view(storage, id, writer.data, now, "aten.view.dtype");
    id = note_view(storage, now, 0);
  }
  auto* plain = in_memory(layout);
  if (now != plain || offset) id = strided(id, plain, offset);
  now = plain;
  if (layout->conjugate) std::tie(id, now) = turned(id, now, conj, true, false, offset);
  if (layout->negative) std::tie(id, now) = turned(id, now, neg, layout->conjugate, true, offset);
  return id;
}

inline Twin* Recorder::find_twin(const TensorImpl* impl) {
  auto found = twins.find(impl->unsafe_storage().unsafeGetStorageImpl());
  if (found == twins.end()) return nullptr;
  uint32_t version = const_cast<TensorImpl*>(impl)->is_inference() ? 0 : impl->version_counter().current_version();
  for (auto& twin : found->second)
    if (twin.address == impl && twin.version == version && !twin.tensor.expired()) return &twin;
  return nullptr;
}
// Lets go of what the pool has of tensors that are gone, without the lock: a program that keeps it for them would be
// another one than the last, by chance.
inline void Recorder::forget_dead_twins() {
  std::vector<Twin> gone;
  std::lock_guard<std::mutex> guard(lock);
  for (auto it = twins.begin(); it != twins.end();) {
    auto& found = it->second;
    for (auto twin = found.begin(); twin != found.end();) {
      if (!twin->tensor.expired()) {
        ++twin;
        continue;
      }
      gone.push_back(std::move(*twin));
      twin = found.erase(twin);
    }
    it = found.empty() ? twins.erase(it) : std::next(it);
  }
}
inline void Recorder::forget_twins(const c10::StorageImpl* memory) { twins.erase(memory); }

// ---------------------------------------------------------------------------------------------------------------- nodes
inline uint64_t Recorder::push(const Plan* plan, const Call& call) {
  positions_.push_back(words_.size());
  size_t position = words_.size();
  words_.resize(position + 3 + call.inputs.size() + call.scalars.size());
  uint64_t* word = words_.data() + position;
  word[0] = reinterpret_cast<uint64_t>(plan);
  word[1] = scopes.current();
  word[2] = next_id_;
  word += 3;
  for (auto& input : call.inputs) *word++ = input.id;
  for (auto scalar : call.scalars) *word++ = scalar;
  ops_recorded++;
  for (int i : plan->written) {
    auto* storage = call.inputs[i].storage;
    if (storage->base && storage->host_is_current()) storage->base->spare = storage->rare->host;
    storage->version++;
    storage->forget_host();
  }
  return next_id_;
}

inline bool Recorder::is_just_allocated(const LazyStorage* storage) const {
  if (positions_.empty() || !storage->base || storage->base->state != State::pending) return false;
  auto* word = words_.data() + positions_.back();
  return word[2] == storage->base->id && reinterpret_cast<const Plan*>(word[0])->name.starts_with("aten.empty");
}

inline void pack_scalars(Writer& writer, const uint64_t* word, int count) {
  writer.array(size_t(count));
  for (int i = 0; i < count; i++) {
    uint64_t tag = *word++;
    double real, imaginary;
    switch (tag) {
      case kInteger: writer.integer(int64_t(*word++)); break;
      case kReal: std::memcpy(&real, word++, 8); writer.real(real); break;
      case kBoolean: writer.boolean(*word++ != 0); break;
      default:
        std::memcpy(&real, word++, 8);
        std::memcpy(&imaginary, word++, 8);
        writer.map(3), writer.text("t"), writer.text("complex"), writer.text("real"), writer.real(real), writer.text("imag"),
            writer.real(imaginary);
    }
  }
}

inline void Recorder::take_dead(std::vector<Base*>& dead) {
  std::lock_guard<std::mutex> guard(deaths_lock);
  dead.swap(deaths_);
  for (auto* base : dead) base->alive = false;
}
inline void Recorder::free_base(Base* base) { delete base; }

inline py::tuple Recorder::assemble(const std::vector<uint64_t>& fetch, std::optional<std::string> rng_state) {
  forget_dead_twins();
  std::unique_lock<std::mutex> guard(lock);
  std::vector<Base*> dead;
  take_dead(dead);
  Assembly assembly(*this, fetch);
  assembly.select();
  auto flight = std::make_unique<Flight>();
  flight->segment = segment;
  flight->kept.assign(assembly.kept.begin(), assembly.kept.end());
  Table<const Layout*> metas;
  Table<const std::string*> templates;
  Table<uint32_t> used_scopes;
  Table<uint64_t> sources;
  std::unordered_map<std::string_view, const std::string*> templates_by_text;
  std::unordered_map<const Plan*, uint32_t> template_of;
  std::vector<uint64_t> produced;
  Writer nodes;
  nodes.array(assembly.kept.size());
  auto& made = assembly.made;
  uint64_t first = assembly.first;
  std::vector<Result> results;
  for (size_t index = 0; index < assembly.kept.size(); index++) {
    const uint64_t* node = words_.data() + positions_[assembly.kept[index]];
    auto* plan = reinterpret_cast<const Plan*>(node[0]);
    const uint64_t* inputs = node + 3;
    for (int i = 0; i < plan->n_inputs; i++)
      if (inputs[i] < first || !made[inputs[i] - first]) sources.add(inputs[i]);
    auto [found, is_new] = template_of.try_emplace(plan, 0);
    if (is_new) found->second = templates.add(templates_by_text.try_emplace(plan->packed, &plan->packed).first->second);
    nodes.array(8);
    nodes.natural(found->second);
    nodes.array(size_t(plan->n_inputs));
    for (int i = 0; i < plan->n_inputs; i++) nodes.natural(inputs[i]);
    results.clear();
    Assembly::each_result(node, [&](const Out& out, uint64_t id) { results.push_back({out.kind, id, 0}); });
    nodes.array(results.size());
    for (auto& result : results) {
      if (result.kind == OutKind::none) {
        nodes.nil();
        continue;
      }
      nodes.natural(result.id);
      result.storage = assembly.storage_id(result.id);
      if (result.kind == OutKind::same) continue;
      made[result.id - first] = 1;
      if (result.kind == OutKind::fresh) {
        produced.push_back(result.id);
        flight->made.emplace_back(uint32_t(index), result.id);
      }
    }
    if (plan->dynamic) {
      nodes.array(0);
    } else {
      nodes.array(plan->outs.size());
      for (auto& out : plan->outs) out.kind == OutKind::none ? nodes.nil() : nodes.natural(metas.add(out.layout));
    }
    nodes.array(results.size());
    for (auto& result : results) result.kind == OutKind::none ? nodes.nil() : nodes.natural(result.storage);
    nodes.natural(used_scopes.add(uint32_t(node[1])));
    pack_scalars(nodes, inputs + plan->n_inputs, plan->n_scalars);
    nodes.boolean(plan->dynamic);
  }
  for (uint64_t value : fetch)
    if (value < first || !made[value - first]) sources.add(value);
  Writer sent;
  std::vector<uint64_t> keep;
  sent.array(sources.items.size());
  for (uint64_t value : sources.items) {
    auto* base = find_base(value);
    TORCH_INTERNAL_ASSERT(base, "value ", value, " is read and nobody knows it");
    sent.array(6);
    sent.natural(value);
    sent.natural(value);
    sent.natural(metas.add(base->layout));
    sent.text(residency_name(base->residency));
    if (base->spare) flight->spares.emplace(value, std::move(base->spare)), base->spare = at::Storage();
    bool arrives = base->state == State::source;
    arrives && !base->has_inline ? sent.text(base->blob) : sent.nil();
    arrives && base->has_inline ? sent.binary(base->inline_bytes) : sent.nil();
    if (arrives) {
      flight->sources.push_back(value);
      base->state = State::held;
      if (base->alive) keep.push_back(value);
    }
  }
  for (uint64_t value : produced)
    if (find_base(value)->alive) keep.push_back(value);
  std::vector<uint64_t> release;
  std::unordered_set<uint64_t> just_sent(flight->sources.begin(), flight->sources.end());
  dead.erase(std::remove_if(dead.begin(), dead.end(), [&](Base* base) { return base->id >= first; }), dead.end());  // freed below
  for (auto* base : dead)
    if (base->state == State::held && !just_sent.count(base->id)) release.push_back(base->id);
  flight->nodes = assembly.kept.size();
  Writer program;
  program.map(10);
  program.text("metas"), program.array(metas.items.size());
  for (auto* layout : metas.items) program.raw(layout->packed);
  program.text("templates"), program.array(templates.items.size());
  for (auto* packed : templates.items) program.raw(*packed);
  program.text("scopes"), program.array(used_scopes.items.size());
  for (auto index : used_scopes.items) {
    auto& scope = scopes.table[index];
    program.array(5);
    program.text(scopes.paths[scope.path]);
    program.natural(scope.call);
    program.text(scopes.cell);
    program.natural(scope.line);
    program.text(phase_name(scope.phase));
  }
  program.text("sources"), program.raw(sent.data);
  program.text("nodes"), program.raw(nodes.data);
  auto ids = [&](const char* name, const std::vector<uint64_t>& values) {
    program.text(name), program.array(values.size());
    for (uint64_t value : values) program.natural(value);
  };
  ids("keep", keep), ids("fetch", fetch), ids("release", release);
  program.text("rng_state");
  rng_state ? program.binary(*rng_state) : program.nil();
  program.text("settings"), write_settings(program, settings);
  bool empty = assembly.kept.empty() && fetch.empty();
  // what lives on was made by now, or is on its way
  for (auto& value : values_) {
    if (!value.is_base) continue;
    if (!value.base->alive) {
      free_base(value.base);
      continue;
    }
    if (value.base->state == State::pending) value.base->state = State::held;
    held_[value.base->id] = value.base;
  }
  for (auto* base : dead) {
    held_.erase(base->id);
    free_base(base);
  }
  values_.clear();
  words_.clear();
  positions_.clear();
  first_pending_ = next_id_;
  segment++;
  scopes.clear();
  std::vector<PyObject*> gone;
  {
    std::lock_guard<std::mutex> deaths(deaths_lock);
    gone.swap(abandoned);
  }
  size_t count = flight->nodes;
  guard.unlock();
  for (auto* object : gone) Py_DECREF(object);
  py::object data = empty ? py::object(py::none()) : py::object(py::bytes(program.data));
  return py::make_tuple(data, count, release, py::cast(std::move(flight)));
}

// Nodes that did not run were to overwrite these bytes.
inline void Recorder::give_back(Base* base, const at::Storage& spare) {
  auto* storage = base->owner;
  if (storage && !storage->host_is_current() && spare.nbytes() >= storage->nbytes()) storage->set_host(spare);
}
inline void Recorder::give_back(const Flight& flight) {
  for (auto& [id, spare] : flight.spares)
    if (auto* base = find_base(id)) give_back(base, spare);
}
inline void Recorder::give_back_spares() {
  auto give = [&](Base* base) {
    if (base->spare) give_back(base, base->spare), base->spare = at::Storage();
  };
  for (auto& [id, base] : held_) give(base);
  for (auto& value : values_)
    if (value.is_base && value.base) give(value.base);
}
inline std::pair<at::Storage, PyObject*> Recorder::bytes_of(const Flight& flight, uint64_t id) {
  std::lock_guard<std::mutex> guard(lock);
  auto found = flight.spares.find(id);
  if (found != flight.spares.end()) return {found->second, nullptr};
  auto* base = find_base(id);
  if (!base || !base->owner || !base->owner->host_is_current()) return {at::Storage(), nullptr};
  return {base->owner->rare->host, base->owner->rare->exposure};
}
inline void Recorder::settle(const Flight& flight, size_t executed, bool arrived, const std::string& reason) {
  std::lock_guard<std::mutex> guard(lock);
  if (!arrived) give_back(flight);
  for (auto& [node, id] : flight.made)
    if (node >= executed) lose(id, reason);
  for (uint64_t id : flight.sources) {
    auto* base = find_base(id);
    if (!base) continue;
    if (arrived) {
      base->blob.clear();
      base->inline_bytes.clear();
    } else if (base->owner && base->owner->host_is_current()) {
      drop_base(base->owner);  // staged anew when it is needed
    } else {
      base->state = State::source;
    }
  }
}
inline void Recorder::lose_held(const std::vector<uint64_t>& ids, const std::string& reason) {
  std::lock_guard<std::mutex> guard(lock);
  for (uint64_t id : ids) {
    auto* base = find_base(id);
    if (base && base->owner && base->owner->host_is_current()) drop_base(base->owner);  // staged anew when it is needed
    else lose(id, reason);
  }
}
inline void Recorder::lose_pending(const std::string& reason) {
  std::lock_guard<std::mutex> guard(lock);
  give_back_spares();
  for (auto& value : values_)
    if (value.is_base && value.base->state == State::pending) lose(value.base->id, reason);
  for (auto& value : values_)
    if (value.is_base) held_[value.base->id] = value.base;
  values_.clear();
  words_.clear();
  positions_.clear();
  first_pending_ = next_id_;
  segment++;
  scopes.clear();
}
inline void Recorder::lose_pool(const Flight& flight, const std::string& reason) {
  std::lock_guard<std::mutex> guard(lock);
  give_back(flight);
  give_back_spares();
  for (auto* base : living()) {
    if (base->state == State::source || !base->owner) continue;
    if (base->owner->host_is_current()) drop_base(base->owner);
    else lose(base->id, reason);
  }
}
}  // namespace djinn
