// The path of one op: its arguments, its plan, the node, the results. Nothing runs.
#pragma once
#include <ATen/core/jit_type.h>
#include <ATen/native/Resize.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/Storage.h>
#include <torch/csrc/PyInterpreter.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/tensor_memoryformats.h>
#include <torch/library.h>
#include "pending.h"
#include "scopes.h"

namespace djinn {
using torch::jit::Stack;

inline Recorder* capturing_recorder = nullptr;      // of the cell that runs in this process
inline thread_local bool record_now = false;        // the next op is recorded, whatever Python would say
inline std::unordered_map<c10::OperatorHandle, OpInfo*> ops;
inline std::vector<Plan*> plans(1 << 12, nullptr);  // open addressing
inline size_t plan_count = 0;

// What the Python side is asked; see questions.py. Set once.
struct Questions {
  py::object describe, plan, dispatch, outside, allow_cut, run_dynamic, draw, stream, resize, materialize, record;
};
inline Questions* ask = nullptr;

// Below here torch computes: nothing is recorded.
struct Off {
  c10::impl::ExcludeDispatchKeyGuard guard{OURS};
};

// ---------------------------------------------------------------------------------------------------------- what ops are
inline Kind kind_of(const c10::Argument& argument, bool shaped) {
  std::string type = argument.type()->str();
  if (type.find("Tensor[]") != std::string::npos || type.find("Tensor?[]") != std::string::npos) return Kind::tensors;
  if (type.find("Tensor") != std::string::npos) return Kind::tensor;
  if (type.find("Generator") != std::string::npos) return Kind::generator;
  auto real = argument.real_type()->str();
  if (real.find("ScalarType") != std::string::npos || real.find("Layout") != std::string::npos || real.find("MemoryFormat") != std::string::npos)
    return Kind::fixed;
  if (type.find("Scalar[]") != std::string::npos) return Kind::numbers;
  if (type.find("Scalar") != std::string::npos || type.find("number") != std::string::npos) return shaped ? Kind::fixed : Kind::number;
  if (type == "float" || type == "float?") return Kind::real;
  return Kind::fixed;
}
inline OpInfo* make_info(const c10::OperatorHandle& op) {
  py::gil_scoped_acquire gil;  // outlives what an exception destroys
  auto info = std::make_unique<OpInfo>(op);
  const auto& schema = op.schema();
  bool shaped = schema.name() == "aten::arange" || schema.name() == "aten::range";
  info->composite = op.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd) && !op.hasKernelForDispatchKey(DispatchKey::CPU);
  bool tensors = false;
  for (const auto& given : schema.arguments()) {
    Argument argument;
    argument.kind = kind_of(given, shaped);
    argument.keyword = given.kwarg_only();
    argument.name = given.name();
    argument.type = given.real_type();
    if (given.default_value()) {
      argument.has_default = true;
      argument.fallback = *given.default_value();
    }
    if (!argument.keyword) info->positional++;
    if (argument.name == "size") info->size_argument = int(info->arguments.size());
    if (argument.name == "training") info->training_argument = int(info->arguments.size());
    if (argument.name == "device") info->device_argument = int(info->arguments.size());
    tensors |= argument.kind == Kind::tensor || argument.kind == Kind::tensors;
    info->arguments.push_back(std::move(argument));
  }
  info->factory = !tensors;
  TORCH_CHECK(info->arguments.size() <= 64, "an op of more than 64 arguments: ", schema.name());
  Off off;
  info->function = py::reinterpret_borrow<py::object>(torch::detail::getTorchApiFunction(op));
  py::dict facts = ask->describe(info->function);
  info->ordinary = facts["ordinary"].cast<bool>();
  info->stays = facts["stays"].cast<bool>();
  info->view = facts["view"].cast<bool>();
  info->random = facts["random"].cast<bool>();
  info->alias = facts["alias"].cast<bool>();
  info->made_here = facts["made_here"].cast<bool>();
  for (auto name : facts["written"].cast<std::vector<std::string>>())
    for (auto& argument : info->arguments)
      if (argument.name == name) argument.written = info->writes = true;
  for (auto name : facts["written_in_training"].cast<std::vector<std::string>>())
    for (auto& argument : info->arguments)
      if (argument.name == name) argument.in_training = true;
  return info.release();
}
inline OpInfo* info_of(const c10::OperatorHandle& op) {
  {
    std::lock_guard<std::mutex> guard(lock);
    auto found = ops.find(op);
    if (C10_LIKELY(found != ops.end())) return found->second;
  }
  auto* made = make_info(op);
  std::lock_guard<std::mutex> guard(lock);
  return ops.emplace(op, made).first->second;
}

// --------------------------------------------------------------------------------------------------------- the arguments
inline bool is_default(const IValue& value, const IValue& fallback) {
  if (value.isNone() || fallback.isNone()) return value.isNone() && fallback.isNone();
  if (value.isInt()) return fallback.isInt() && value.toInt() == fallback.toInt();
  if (value.isBool()) return fallback.isBool() && value.toBool() == fallback.toBool();
  if (value.isDouble()) return fallback.isDouble() && value.toDouble() == fallback.toDouble();
  if (value.isString()) return fallback.isString() && value.toStringRef() == fallback.toStringRef();
  if (value.isIntList()) return fallback.isIntList() && value.toIntVector() == fallback.toIntVector();
  return false;
}
inline uint64_t left_out(const OpInfo* info, at::ArrayRef<IValue> values) {
  uint64_t mask = 0;
  for (int i = info->positional - 1; i >= 0; i--) {
    auto& argument = info->arguments[i];
    if (!argument.has_default || !is_default(values[i], argument.fallback)) break;
    mask |= 1ull << i;
  }
  for (size_t i = info->positional; i < info->arguments.size(); i++)
    if (info->arguments[i].has_default && is_default(values[i], info->arguments[i].fallback)) mask |= 1ull << i;
  return mask;
}
inline void add_number(Call& call, const IValue& value) {
  uint64_t bits = 0;
  auto add = [&](NumberTag tag, uint64_t word) {
    call.key.push_back(0xD0 + tag);
    call.scalars.push_back(tag);
    call.scalars.push_back(word);
    call.n_scalars++;
  };
  if (value.isDouble()) {
    double number = value.toDouble();
    std::memcpy(&bits, &number, 8);
    add(kReal, bits);
  } else if (value.isInt()) {
    add(kInteger, uint64_t(value.toInt()));
  } else if (value.isBool()) {
    add(kBoolean, value.toBool());
  } else if (value.isComplexDouble()) {
    auto number = value.toComplexDouble();
    double real = number.real(), imaginary = number.imag();
    std::memcpy(&bits, &real, 8);
    add(kComplex, bits);
    std::memcpy(&bits, &imaginary, 8);
    call.scalars.push_back(bits);
  } else if (value.isNone()) {
    call.key.push_back(0xD0);
  } else {
    call.odd = true;
  }
}
inline void add_fixed(Call& call, const IValue& value) {
  auto& key = call.key;
  if (value.isNone()) key.push_back(0xE0);
  else if (value.isInt()) { key.push_back(0xE1); key.push_back(uint64_t(value.toInt())); }
  else if (value.isBool()) key.push_back(value.toBool() ? 0xE2 : 0xE3);
  else if (value.isDouble()) { uint64_t bits; double number = value.toDouble(); std::memcpy(&bits, &number, 8); key.push_back(0xE4); key.push_back(bits); }
  else if (value.isList()) {
    auto items = value.toListRef();
    key.push_back(0xE5 + (uint64_t(items.size()) << 8));
    for (const auto& item : items) add_fixed(call, item);
  } else if (value.isDevice()) { key.push_back(0xE6 + (uint64_t(value.toDevice().type()) << 8)); }
  else if (value.isString()) {
    const auto& text = value.toStringRef();
    key.push_back(0xE7 + (uint64_t(text.size()) << 8));
    for (size_t i = 0; i < text.size(); i += 8) {
      uint64_t bits = 0;
      std::memcpy(&bits, text.data() + i, std::min<size_t>(8, text.size() - i));
      key.push_back(bits);
    }
  } else {
    call.odd = true;
  }
}
inline bool is_ordinary_tensor(const Tensor& tensor) {
  auto* impl = tensor.unsafeGetTensorImpl();
  static const DispatchKeySet strange({DispatchKey::Python, DispatchKey::FuncTorchBatched, DispatchKey::FuncTorchGradWrapper,
                                       DispatchKey::Functionalize, DispatchKey::Batched, DispatchKey::NestedTensor,
                                       DispatchKey::Quantized});
  return impl->layout() == at::kStrided && impl->device().is_cpu() && !impl->key_set().has_any(strange);
}
inline void add_tensor(Recorder& recorder, Call& call, const Tensor& tensor, bool offsets, bool written, bool prepared) {
  if (!tensor.defined()) {
    call.key.push_back(0xF0);
    return;
  }
  auto* impl = tensor.unsafeGetTensorImpl();
  if (C10_LIKELY(is_lazy(impl))) {
    call.any_lazy = true;
    auto* storage = storage_of(impl);
    Input input{0, storage, nullptr, 0, &tensor};
    if (C10_UNLIKELY(storage->recorder != &recorder)) call.foreign = true;
    if (C10_UNLIKELY(written && storage->exposed())) call.exposed_written = true;
    bool usable = prepared ? storage->base && storage->base->usable && storage->covered == storage->nbytes() : storage->usable();
    if (C10_LIKELY(usable && !call.foreign)) recorder.find_id(storage, impl, input);
    else {
      call.any_unready = true;
      input.layout = layout_of(impl);
      input.offset = impl->storage_offset();
    }
    if (impl->dim()) call.all_zero_dim = false;
    if (impl->dim() || !storage->host_is_current() || !c10::isIntegralType(impl->dtype().toScalarType(), true)) call.known_integers = false;
    call.inputs.push_back(input);
    call.key.push_back(reinterpret_cast<uint64_t>(input.layout));
    if (offsets) call.key.push_back(uint64_t(input.offset));
    return;
  }
  if (impl->is_wrapped_number()) {
    auto type = impl->dtype().toScalarType();
    const void* data = impl->data();
    if (type == at::kDouble) return add_number(call, *static_cast<const double*>(data));
    if (type == at::kLong) return add_number(call, *static_cast<const int64_t*>(data));
    if (type == at::kBool) return add_number(call, *static_cast<const bool*>(data));
    if (type == at::kComplexDouble) return add_number(call, *static_cast<const c10::complex<double>*>(data));
  }
  call.any_plain = true;
  if (impl->dim()) call.all_zero_dim = false;
  if (!is_ordinary_tensor(tensor)) call.odd = true;
  if (written) call.plain_written = true;
  auto* twin = call.odd ? nullptr : recorder.find_twin(impl);
  if (twin && twin->storage->usable() && (prepared || !twin->once)) {
    Input input{0, twin->storage.get(), layout_of(impl), twin->offset, &tensor};
    input.id = recorder.id_of(twin->storage.get(), input.layout, twin->offset);
    call.inputs.push_back(input);
    call.key.push_back(reinterpret_cast<uint64_t>(input.layout));
    if (offsets) call.key.push_back(uint64_t(input.offset));
    return;
  }
  call.any_unready = true;
  call.inputs.push_back({0, nullptr, nullptr, 0, &tensor});
}
inline void read_arguments(Recorder& recorder, const OpInfo* info, at::ArrayRef<IValue> values, Call& call, bool prepared) {
  call.left_out = left_out(info, values);
  call.key.push_back(reinterpret_cast<uint64_t>(info));
  call.key.push_back(call.left_out);
  const bool offsets = info->view || info->writes;
  for (size_t i = 0; i < values.size(); i++) {
    call.first_input.push_back(-1);
    if (call.left_out >> i & 1) continue;
    const IValue& value = values[i];
    auto& argument = info->arguments[i];
    size_t before = call.inputs.size();
    switch (argument.kind) {
      case Kind::tensor:
        if (value.isTensor()) add_tensor(recorder, call, value.toTensor(), offsets, info->writes_argument(i, values), prepared);
        else call.key.push_back(0xF2);
        break;
      case Kind::tensors:
        if (value.isNone()) {
          call.key.push_back(0xF2);
          break;
        }
        call.key.push_back(value.toListRef().size());
        for (const auto& item : value.toListRef()) {
          if (item.isTensor()) add_tensor(recorder, call, item.toTensor(), offsets, info->writes_argument(i, values), prepared);
          else call.key.push_back(0xF2);
        }
        break;
      case Kind::number:
      case Kind::real: add_number(call, value); break;
      case Kind::numbers:
        if (value.isNone()) {
          call.key.push_back(0xF2);
          break;
        }
        call.key.push_back(value.toListRef().size());
        for (const auto& item : value.toListRef()) add_number(call, item);
        break;
      case Kind::generator: call.generator |= !value.isNone(); break;
      default: add_fixed(call, value);
    }
    if (call.inputs.size() > before) call.first_input.back() = int(before);
  }
  if (info->writes && call.inputs.size() > 1)  // how inputs share memory, and which are one tensor
    for (size_t i = 1; i < call.inputs.size(); i++)
      for (size_t j = 0; j < i; j++)
        if (call.inputs[i].storage == call.inputs[j].storage)
          call.key.push_back((call.inputs[i].tensor->is_same(*call.inputs[j].tensor) ? 0xAB00 : 0xAA00) + (i << 20) + j);
  call.key.push_back(numeric_settings(recorder.for_accelerators, recorder.replayable));
}

// ---------------------------------------------------------------------------------------------------------- to Python
inline py::object python_of(const Argument& argument, const IValue& value) {
  if (value.isNone()) return py::none();
  if (argument.kind == Kind::tensor && value.isTensor()) {
    const Tensor& tensor = value.toTensor();
    if (!tensor.defined()) return py::none();
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
      auto type = tensor.scalar_type();
      const void* data = tensor.unsafeGetTensorImpl()->data();
      if (type == at::kDouble) return py::float_(*static_cast<const double*>(data));
      if (type == at::kLong) return py::int_(*static_cast<const int64_t*>(data));
      if (type == at::kBool) return py::bool_(*static_cast<const bool*>(data));
      if (type == at::kComplexDouble) return py::cast(std::complex<double>(*static_cast<const std::complex<double>*>(data)));
    }
    return py::reinterpret_steal<py::object>(THPVariable_Wrap(tensor));
  }
  auto type = argument.type;
  if (type->kind() == c10::OptionalType::Kind) type = type->castRaw<c10::OptionalType>()->getElementType();
  auto borrowed = [](void* object) { return py::reinterpret_borrow<py::object>(static_cast<PyObject*>(object)); };
  if (type->kind() == c10::ScalarTypeType::Kind) return borrowed(torch::getTHPDtype(at::ScalarType(value.toInt())));
  if (type->kind() == c10::LayoutType::Kind) return borrowed(torch::getTHPLayout(at::Layout(value.toInt())));
  if (type->kind() == c10::MemoryFormatType::Kind) return borrowed(torch::utils::getTHPMemoryFormat(at::MemoryFormat(value.toInt())));
  return torch::jit::toPyObject(value);
}
inline std::pair<py::tuple, py::dict> python_arguments(const OpInfo* info, at::ArrayRef<IValue> values, uint64_t mask) {
  int positional = info->positional;
  while (positional > 0 && (mask >> (positional - 1) & 1)) positional--;
  py::tuple args(positional);
  py::dict kwargs;
  for (int i = 0; i < positional; i++) args[i] = python_of(info->arguments[i], values[i]);
  for (size_t i = info->positional; i < info->arguments.size(); i++)
    if (!(mask >> i & 1)) kwargs[py::str(info->arguments[i].name)] = python_of(info->arguments[i], values[i]);
  return {args, kwargs};
}
// Puts what Python returned for the op on the stack.
inline void push_returned(const OpInfo* info, Stack* stack, py::object returned) {
  const auto& returns = info->op.schema().returns();
  torch::jit::drop(*stack, info->arguments.size());
  if (returns.empty()) return;
  auto push = [&](py::handle item, const c10::Argument& declared) {
    if (item.is_none() && declared.type()->kind() == c10::TensorType::Kind) stack->emplace_back(Tensor());
    else stack->emplace_back(torch::jit::toIValue(item, declared.type()));
  };
  if (returns.size() == 1) return push(returned, returns[0]);
  size_t i = 0;
  for (auto item : returned) push(item, returns[i++]);
  TORCH_INTERNAL_ASSERT(i == returns.size());
}

// --------------------------------------------------------------------------------------------------------------- plans
inline Plan* find_plan(const Call& call, uint64_t hash) {
  size_t mask = plans.size() - 1;
  for (size_t at = hash & mask;; at = (at + 1) & mask) {
    Plan* plan = plans[at];
    if (!plan) return nullptr;
    if (plan->hash == hash && plan->key.size() == call.key.size() &&
        !std::memcmp(plan->key.data(), call.key.data(), call.key.size() * 8))
      return plan;
  }
}
inline void keep_plan(Plan* plan) {
  if (++plan_count * 2 > plans.size()) {
    std::vector<Plan*> larger(plans.size() * 2, nullptr);
    for (auto* old : plans)
      if (old) {
        size_t at = old->hash & (larger.size() - 1);
        while (larger[at]) at = (at + 1) & (larger.size() - 1);
        larger[at] = old;
      }
    plans.swap(larger);
  }
  size_t at = plan->hash & (plans.size() - 1);
  while (plans[at]) at = (at + 1) & (plans.size() - 1);
  plans[at] = plan;
}
// Attributes of an OpPlan and its outputs, as interned strings.
struct PlanNames {
  struct Name : py::str {
    Name(const char* text) : py::str(py::reinterpret_steal<py::str>(PyUnicode_InternFromString(text))) {}
  };
  Name template_{"template"}, op{"op"}, packed{"packed"}, dynamic{"dynamic"}, resized{"resized"};
  Name literals{"literals"}, outputs{"outputs"}, layout{"layout"}, offset{"offset"}, source{"source"}, written{"written"};
};
// Asks Python what the call returns. Needs the GIL; `stack` holds the arguments. The answer's layouts are interned there.
inline Plan* make_plan(Recorder& recorder, const OpInfo* info, at::ArrayRef<IValue> values, const Call& call) {
  static const auto& names = *new PlanNames;
  py::list inputs;
  for (auto& input : call.inputs)
    inputs.append(py::cast(Value{c10::intrusive_ptr<LazyStorage>::reclaim_copy(input.storage), input.layout, input.offset}));
  auto [args, kwargs] = python_arguments(info, values, call.left_out);
  py::object made = ask->plan(recorder.owner, info->function, args, kwargs, inputs);
  auto plan = std::make_unique<Plan>();
  plan->python = made;
  plan->name = made.attr(names.template_).attr(names.op).cast<std::string>();
  plan->packed = made.attr(names.packed).cast<std::string>();
  plan->n_inputs = int(call.inputs.size());
  plan->n_scalars = call.n_scalars;
  plan->random = info->random;
  plan->reaches = plan->name == "aten.as_strided.default";
  plan->dynamic = made.attr(names.dynamic).cast<bool>();
  plan->resizes = py::len(made.attr(names.resized)) > 0;
  plan->key.assign(call.key.begin(), call.key.end());
  for (size_t i = 0; i < info->arguments.size(); i++)
    if (info->writes_argument(i, values) && call.first_input[i] >= 0) {
      int last = int(call.inputs.size());
      for (size_t j = i + 1; j < info->arguments.size(); j++)
        if (call.first_input[j] >= 0) {
          last = call.first_input[j];
          break;
        }
      for (int k = call.first_input[i]; k < last; k++) plan->written.push_back(k);
    }
  const auto& returns = info->op.schema().returns();
  if (plan->dynamic) {
    for (size_t i = 0; i < returns.size(); i++) plan->outs.push_back({OutKind::fresh, nullptr, 0, -1});
    plan->n_new = int(returns.size());
    plan->shape = returns.size() == 1 ? Plan::Shape::single : Plan::Shape::several;
    return plan.release();
  }
  bool list = returns.size() == 1 && returns[0].type()->kind() == c10::ListType::Kind;
  plan->shape = returns.empty() ? Plan::Shape::nothing
      : list                    ? Plan::Shape::list
      : returns.size() == 1     ? Plan::Shape::single
                                : Plan::Shape::several;
  py::tuple literals = made.attr(names.literals);
  size_t index = 0;
  for (py::handle output : made.attr(names.outputs)) {
    Out out{OutKind::none, nullptr, 0, -1};
    IValue literal;
    if (output.is_none()) {
      if (index < literals.size() && !literals[index].is_none() && !list && index < returns.size())
        literal = torch::jit::toIValue(literals[index], returns[index].type());
      else if (!returns.empty()) literal = Tensor();
      if (plan->shape != Plan::Shape::nothing) {
        plan->outs.push_back(out);
        plan->literals.push_back(literal);
      }
      index++;
      continue;
    }
    out.layout = layout_from_python(output.attr(names.layout));
    out.offset = output.attr(names.offset).cast<int64_t>();
    py::object source = output.attr(names.source);
    if (source.is_none()) {
      out.kind = OutKind::fresh;
      plan->n_new++;
    } else {
      auto name = source.cast<std::string>();
      for (size_t i = 0; i < info->arguments.size(); i++)
        if (info->arguments[i].name == name) out.input = call.first_input[i];
      TORCH_INTERNAL_ASSERT(out.input >= 0, plan->name, " returns its argument ", name, ", which is no tensor");
      bool written = output.attr(names.written).cast<bool>();
      if (written && list) out.input += int(index);
      out.kind = written ? OutKind::same : OutKind::view;
      if (!written) plan->n_new++;
    }
    plan->outs.push_back(out);
    plan->literals.emplace_back();
    index++;
  }
  plan->simple = plan->outs.size() == 1 && plan->outs[0].kind == OutKind::fresh && plan->shape == Plan::Shape::single;
  return plan.release();
}

// -------------------------------------------------------------------------------------------------------------- record
// Raises what torch says of a view that reaches beyond its memory, whose size is not in the key.
inline void check_reach(const Plan* plan, const Call& call) {
  for (auto& out : plan->outs) {
    c10::Storage storage(c10::intrusive_ptr<LazyStorage>::reclaim_copy(call.inputs[out.input].storage));
    at::native::checkInBoundsForStorage<int64_t>(out.layout->sizes, out.layout->strides, out.offset, out.layout->meta, storage);
  }
}
inline void record(Recorder& recorder, const OpInfo* info, const Plan* plan, const Call& call, Stack* stack, std::unique_lock<std::mutex>& held) {
  if (C10_UNLIKELY(plan->reaches)) check_reach(plan, call);
  if (!plan->written.empty()) recorder.histories.remember(call, plan, recorder.made_before, recorder.segment, recorder.pending());
  recorder.push(plan, call);
  size_t count = info->arguments.size();
  if (C10_LIKELY(plan->simple)) {
    Tensor made = new_tensor(plan->outs[0].layout, 0, recorder.fresh_storage(plan->outs[0].layout, State::pending, Residency::activation), nullptr);
    held.unlock();
    torch::jit::drop(*stack, count);
    stack->emplace_back(std::move(made));
    return;
  }
  c10::SmallVector<Tensor, 4> made;
  for (auto& out : plan->outs) {
    switch (out.kind) {
      case OutKind::none: made.emplace_back(); break;
      case OutKind::same: made.push_back(*call.inputs[out.input].tensor); break;
      case OutKind::fresh:
        made.push_back(new_tensor(out.layout, 0, recorder.fresh_storage(out.layout, State::pending, Residency::activation), nullptr));
        break;
      case OutKind::view: {
        auto* storage = call.inputs[out.input].storage;
        recorder.note_view(storage, out.layout, out.offset);
        auto* base = call.inputs[out.input].tensor->unsafeGetTensorImpl();
        made.push_back(new_tensor(out.layout, out.offset, c10::intrusive_ptr<LazyStorage>::reclaim_copy(storage), is_lazy(base) ? base : nullptr));
      }
    }
  }
  held.unlock();
  Stack returned;
  if (plan->shape == Plan::Shape::list) {
    c10::List<Tensor> items;
    for (auto& tensor : made) items.push_back(std::move(tensor));
    returned.emplace_back(std::move(items));
  } else if (plan->shape != Plan::Shape::nothing) {
    for (size_t i = 0; i < made.size(); i++) {
      if (plan->outs[i].kind == OutKind::none) returned.push_back(plan->literals[i]);
      else returned.emplace_back(std::move(made[i]));
    }
  }
  torch::jit::drop(*stack, count);
  for (auto& value : returned) stack->push_back(std::move(value));
}
// An op whose result sizes depend on data: run up to it now and learn them.
inline void record_dynamic(Recorder& recorder, const OpInfo* info, const Plan* plan, const Call& call, Stack* stack, std::unique_lock<std::mutex>& held) {
  recorder.push(plan, call);
  c10::SmallVector<c10::intrusive_ptr<LazyStorage>, 2> storages;
  for (int i = 0; i < plan->n_new; i++) storages.push_back(recorder.fresh_storage(nullptr, State::pending, Residency::activation));
  held.unlock();
  std::vector<const Layout*> layouts;
  {
    py::gil_scoped_acquire gil;
    Off off;
    py::object metas = ask->run_dynamic(recorder.owner, plan->name);
    for (py::handle layout : metas) layouts.push_back(layout_from_python(layout));
  }
  TORCH_INTERNAL_ASSERT(layouts.size() == storages.size());
  torch::jit::drop(*stack, info->arguments.size());
  std::lock_guard<std::mutex> guard(lock);
  for (size_t i = 0; i < storages.size(); i++) {
    auto& storage = storages[i];
    storage->layout = storage->base->layout = layouts[i];
    storage->set_nbytes(size_t(layouts[i]->span_bytes));
    storage->covered = storage->nbytes();
    stack->emplace_back(new_tensor(layouts[i], 0, storage, nullptr));
  }
}

enum class Verdict { record, host, python, outside };

inline Verdict judge(Recorder& recorder, const OpInfo* info, at::ArrayRef<IValue> values, const Call& call, bool captured, bool prepared) {
  if (!captured && !prepared) return Verdict::outside;
  if (prepared) return Verdict::record;
  if (!call.any_lazy) {
    if (info->alias) return Verdict::host;  // reads nothing, and torch makes parameters of what it returns
    if (info->factory) {
      if (info->made_here) return Verdict::host;
      int device = info->device_argument;
      if (device >= 0 && values[device].isDevice() && !values[device].toDevice().is_cpu()) return Verdict::host;
    } else if (call.odd && !call.plain_written && !info->random && !recorder.host_dirty) {
      return Verdict::host;
    }
  }
  bool alone = !call.any_lazy && !call.plain_written && !recorder.host_dirty && !info->random && !info->factory;
  if (alone && (info->stays || call.all_zero_dim || recorder.host_only)) return Verdict::host;
  if (!info->ordinary || call.generator || call.odd || call.plain_written || call.exposed_written || call.any_unready || call.foreign ||
      recorder.host_only)
    return Verdict::python;
  if (C10_UNLIKELY(call.any_lazy && call.known_integers && !call.any_plain && !info->writes && !info->view)) return Verdict::python;
  if (info->device_argument >= 0 && values[info->device_argument].isDevice() && values[info->device_argument].toDevice().is_meta())
    return Verdict::python;
  if (!call.any_lazy && (info->stays || info->factory || call.all_zero_dim)) {
    if (!info->factory) return Verdict::python;
    int size = info->size_argument;
    if (size >= 0 && values[size].isIntList() && values[size].toListRef().empty()) return info->random ? Verdict::python : Verdict::host;
  }
  return Verdict::record;
}

// Asks Python to do the op, or to get its arguments ready to be recorded (then it answers with `ask->record`).
inline bool ask_python(Recorder& recorder, const OpInfo* info, Stack* stack, const py::object& question, uint64_t mask) {
  size_t count = info->arguments.size();
  py::gil_scoped_acquire gil;
  Off off;
  py::object returned;
  {
    auto [args, kwargs] = python_arguments(info, at::ArrayRef<IValue>(stack->data() + stack->size() - count, count), mask);
    returned = question(recorder.owner, info->function, args, kwargs);
  }
  if (returned.is(ask->record)) return false;
  push_returned(info, stack, returned);
  return true;
}

inline Recorder* recorder_among(const OpInfo* info, at::ArrayRef<IValue> values) {
  for (size_t i = 0; i < values.size(); i++) {
    const IValue& value = values[i];
    if (value.isTensor() && value.toTensor().defined() && is_lazy(value.toTensor().unsafeGetTensorImpl()))
      return storage_of(value.toTensor().unsafeGetTensorImpl())->recorder;
    if (info->arguments[i].kind == Kind::tensors && value.isList())
      for (const auto& item : value.toListRef())
        if (item.isTensor() && item.toTensor().defined() && is_lazy(item.toTensor().unsafeGetTensorImpl()))
          return storage_of(item.toTensor().unsafeGetTensorImpl())->recorder;
  }
  return nullptr;
}
inline void run_below(const c10::OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
  Off off;
#ifdef DJINN_KEY_BACKEND
  static const DispatchKeySet below_factories{DispatchKeySet::FULL_AFTER, DispatchKey::DeferredInit};
  if (keys.has(DispatchKey::DeferredInit)) return op.redispatchBoxed(keys & below_factories, stack);
#endif
  op.redispatchBoxed(keys & BELOW, stack);
}

inline void fallback(const c10::OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
  OpInfo* info = info_of(op);
  static const DispatchKeySet nested(DispatchKey::NestedTensor);  // which have kernels of their own
  if (C10_UNLIKELY(info->composite && !keys.has_any(nested))) {  // inference mode, or below a guard: torch takes it apart
    op.redispatchBoxed(DispatchKeySet(DispatchKey::CPU), stack);
    return;
  }
  size_t count = info->arguments.size();
  at::ArrayRef<IValue> values(stack->data() + stack->size() - count, count);
  bool captured = c10::impl::tls_is_dispatch_key_included(KEY) && capturing_recorder;
  bool prepared = std::exchange(record_now, false);
  Recorder* recorder = captured || prepared ? capturing_recorder : nullptr;
  if (!recorder) recorder = recorder_among(info, values);
  if (!recorder) return run_below(op, keys, stack);
  if (captured) {
    recorder->scopes.look();
    recorder->begins_call = std::exchange(recorder->scopes.begins_call, false);
  }
  bool streamed = false, drawn = false, allowed = false;
  for (int attempt = 0;; attempt++) {
    TORCH_INTERNAL_ASSERT(attempt < 8, "cannot record ", info->op.schema().name());
    Call call;
    std::unique_lock<std::mutex> held(lock);
    read_arguments(*recorder, info, values, call, prepared);
    if (C10_UNLIKELY(info->alias && call.any_lazy && !call.odd && !call.foreign)) {
      auto* base = values[0].toTensor().unsafeGetTensorImpl();
      auto* layout = layout_of(base);
      Tensor made = new_tensor(layout, base->storage_offset(), c10::intrusive_ptr<LazyStorage>::reclaim_copy(storage_of(base)), base);
      held.unlock();
      torch::jit::drop(*stack, count);
      stack->emplace_back(std::move(made));
      return;
    }
    Verdict verdict = judge(*recorder, info, values, call, captured, prepared);
    if (verdict == Verdict::host) {
      held.unlock();
      return run_below(op, keys, stack);
    }
    if (C10_UNLIKELY(verdict != Verdict::record)) {
      held.unlock();
      if (ask_python(*recorder, info, stack, verdict == Verdict::outside ? ask->outside : ask->dispatch, call.left_out)) return;
      prepared = true;
      continue;
    }
    TORCH_INTERNAL_ASSERT(!call.any_unready && !call.odd, "inputs of ", info->op.schema().name(), " are not on the pool");
    if (C10_UNLIKELY(call.key.back() != recorder->settings)) {
      if (recorder->pending()) {  // these run under the settings of their time, so first
        held.unlock();
        py::gil_scoped_acquire gil;
        Off off;
        recorder->owner().attr("run_under_old_settings")();
        continue;
      }
      recorder->settings = call.key.back();
    }
    uint64_t hash = call.key.size();
    for (auto word : call.key) hash = mix(hash, word);
    Plan* plan = find_plan(call, hash);
    if (C10_UNLIKELY(!plan)) {
      held.unlock();
      py::gil_scoped_acquire gil;
      Off off;
      Plan* made = make_plan(*recorder, info, values, call);
      made->hash = hash;
      std::lock_guard<std::mutex> guard(lock);
      if (!find_plan(call, hash)) keep_plan(made);  // another thread may have been faster; plans live for good
      recorder->plans_made++;
      continue;
    }
    if (C10_UNLIKELY(plan->resizes)) {
      held.unlock();
      py::gil_scoped_acquire gil;
      Off off;
      auto [args, kwargs] = python_arguments(info, values, call.left_out);
      ask->resize(recorder->owner, plan->python, info->function, args, kwargs);
      prepared = true;
      continue;
    }
    if (C10_UNLIKELY(plan->dynamic && (info->writes || info->view))) {
      held.unlock();
      if (!ask_python(*recorder, info, stack, ask->outside, call.left_out)) TORCH_INTERNAL_ASSERT(false);
      return;
    }
    if (C10_UNLIKELY(captured && !streamed && recorder->is_long())) {
      held.unlock();
      streamed = true;
      py::gil_scoped_acquire gil;
      Off off;
      ask->stream(recorder->owner);
      continue;
    }
    if (C10_UNLIKELY(plan->dynamic && !allowed)) {
      held.unlock();
      allowed = true;
      py::gil_scoped_acquire gil;
      Off off;
      ask->allow_cut(recorder->owner, plan->name);
      continue;
    }
    if (C10_UNLIKELY(info->random && !recorder->draws_open && !drawn)) {
      held.unlock();
      drawn = true;
      py::gil_scoped_acquire gil;
      Off off;
      ask->draw(recorder->owner);
      continue;
    }
    if (C10_UNLIKELY(plan->dynamic)) return record_dynamic(*recorder, info, plan, call, stack, held);
    return record(*recorder, info, plan, call, stack, held);
  }
}

// Autograd's engine asks after a node whether it may add one gradient into the memory of another; it reads nothing. Torch's own
// nodes do not read memory either, only people's do.
inline bool engine_asks() {
  if (torch::autograd::get_current_graph_task_id() == -1 || c10::impl::tls_is_dispatch_key_excluded(KEY)) return false;
  auto node = torch::autograd::get_current_node();
  if (!node) return false;
  const auto& asked = *node;
  const char* type = typeid(asked).name();
  return !std::strstr(type, "PyNode") && !std::strstr(type, "CppNode");
}
inline bool LazyImpl::has_storage() const {
  if (C10_UNLIKELY(djinn::is_lazy(this))) {
    auto* storage = storage_of(this);
    if (storage->nbytes() && !storage->_mutable_data_ptr_no_checks().get() && !engine_asks()) {
      py::gil_scoped_acquire gil;
      Off off;
      ask->materialize(storage->recorder->owner, py::cast(c10::intrusive_ptr<LazyStorage>::reclaim_copy(storage)));
    } else if (C10_UNLIKELY(storage->host_moved())) {
      storage->point_at_host();
    }
  }
  return bool(storage_);
}
}  // namespace djinn
