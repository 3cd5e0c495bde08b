// An op template made ready to be called: an operator and its arguments, with holes for tensors and numbers.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/python_arg_parser.h>

#include <algorithm>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace djinn {

namespace py = pybind11;
using c10::IValue;
using c10::TypeKind;
using c10::TypePtr;

// An argument with numbers that are filled in for every run: one, or some items of a list.
struct NumberHole {
  NumberHole(TypePtr declared, std::optional<int32_t> length, TypeKind kind, bool allow_numbers_as_tensors)
      : type(std::move(declared)), length(length), kind(kind), allow_numbers_as_tensors(allow_numbers_as_tensors) {}

  TypePtr type;
  std::optional<int32_t> length;
  TypeKind kind;  // of the number, where it may be left out
  bool allow_numbers_as_tensors;
  py::object items;  // of a list: constants, and None where a number is filled in; else null
  int32_t count = 1;

  // As a call from Python would convert it; throws what that would. `numbers`: as many as `count`.
  IValue convert(PyObject* const* numbers) const {
    if (items) {
      py::list filled;
      for (const py::handle item : items) filled.append(item.is_none() ? py::handle(*numbers++) : item);
      return as_python_would(filled);
    }
    if (PyFloat_CheckExact(*numbers) && (kind == TypeKind::NumberType || kind == TypeKind::FloatType))
      return PyFloat_AS_DOUBLE(*numbers);
    return as_python_would(*numbers);
  }

 private:
  IValue as_python_would(py::handle value) const {
    torch::jit::ToIValueAllowNumbersAsTensors guard(allow_numbers_as_tensors);
    return torch::jit::toIValue(value, type, length);
  }
};

// Thrown for a template that only Python can call; nothing is wrong with it.
struct NotNative : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Op {
 public:
  // `args`, `kwargs`: constants as Python values, `tensor_hole` and `number_hole` where something is filled in,
  // in reading order.
  Op(const std::string& name, const std::string& overload, const py::list& args, const py::dict& kwargs,
     const py::object& tensor_hole, const py::object& number_hole, std::vector<bool> fresh,
     std::vector<int32_t> writes, bool resizes, bool appends, bool zeroed, bool in_grad_mode,
     bool attends, std::vector<int32_t> own)
      : fresh(std::move(fresh)),
        writes(std::move(writes)),
        resizes(resizes),
        appends(appends),
        zeroed(zeroed),
        in_grad_mode(in_grad_mode),
        attends(attends),
        own(std::move(own)),
        handle_(c10::Dispatcher::singleton().findSchemaOrThrow(("aten::" + name).c_str(), overload.c_str())),
        tensor_hole_(tensor_hole),
        number_hole_(number_hole),
        allow_numbers_(torch::should_allow_numbers_as_tensors(name)) {
    const auto& declared = handle_.schema().arguments();
    if (args.size() > declared.size()) throw NotNative("too many arguments");
    parts_.resize(declared.size());
    std::vector<bool> given(declared.size(), false);
    for (size_t place = 0; place < args.size(); ++place) {
      if (declared[place].kwarg_only()) throw NotNative("a keyword-only argument given by position");
      add(place, args[place]);
      given[place] = true;
    }
    for (const auto& [key, value] : kwargs) {
      const auto place = handle_.schema().argumentIndexWithName(py::cast<std::string>(key));
      if (!place || given[*place]) throw NotNative("an argument given twice, or unknown");
      add(*place, value);
      given[*place] = true;
    }
    for (size_t place = 0; place < declared.size(); ++place) {
      if (given[place]) continue;
      if (!declared[place].default_value()) throw NotNative("an argument is missing");
      parts_[place].constant = *declared[place].default_value();
    }
    const auto& returns = handle_.schema().returns();
    returns_list_ = returns.size() == 1 && returns[0].type()->kind() == TypeKind::ListType;
    for (const auto& one : returns)
      if (one.type()->kind() != TypeKind::TensorType && !returns_list_) throw NotNative("it returns no tensors");
    if (returns_list_ && !returns[0].type()->isSubtypeOf(*c10::ListType::ofTensors()))
      throw NotNative("it returns a list of something else than tensors");
    if (has_constant_tensor_ && !may_share_constants()) throw NotNative("a result may alias a number");
    tensor_hole_ = number_hole_ = py::object();
  }

  // Calls the operator. `tensors[i]` fills the i-th tensor hole; what it returns is on `stack`.
  template <typename TensorAt>
  void call(torch::jit::Stack& stack, const TensorAt& tensor_at, const IValue* numbers) const {
    stack.clear();
    for (const Part& part : parts_) {
      switch (part.fill) {
        case Fill::constant:
          stack.push_back(part.constant);
          break;
        case Fill::number:
          stack.push_back(numbers[part.first]);
          break;
        case Fill::tensor:
          stack.emplace_back(needed(tensor_at(part.first)));
          break;
        case Fill::optional_tensor: {
          const at::Tensor& tensor = tensor_at(part.first);
          if (tensor.defined()) stack.emplace_back(tensor);
          else stack.emplace_back();
          break;
        }
        case Fill::tensors: {
          c10::List<at::Tensor> list;
          list.reserve(part.is_hole.size());
          for (size_t i = 0; i < part.is_hole.size(); ++i) list.push_back(needed(tensor_at(part.first + i)));
          stack.emplace_back(std::move(list));
          break;
        }
        case Fill::optional_tensors: {
          c10::List<std::optional<at::Tensor>> list;
          list.reserve(part.is_hole.size());
          int32_t next = part.first;
          for (const bool hole : part.is_hole) {
            if (!hole) {
              list.push_back(std::nullopt);
              continue;
            }
            const at::Tensor& tensor = tensor_at(next++);
            if (tensor.defined()) list.push_back(tensor);
            else list.push_back(std::nullopt);
          }
          stack.emplace_back(std::move(list));
          break;
        }
      }
    }
    if (!in_grad_mode) {
      handle_.callBoxed(&stack);
    } else {  // it computes differently under no_grad; its last argument says which it was
      const c10::AutoGradMode mode(stack.back().toBool());
      handle_.callBoxed(&stack);
    }
  }

  // What is on the stack after the call, one tensor a result.
  void results(torch::jit::Stack& stack, std::vector<at::Tensor>& into) const {
    into.clear();
    if (returns_list_) {
      for (at::Tensor& one : into_vector(stack)) into.push_back(std::move(one));
    } else {
      for (IValue& one : stack) into.push_back(std::move(one).toTensor());
      if (stack.empty()) into.emplace_back();
    }
    stack.clear();
  }

  // The converted numbers of an earlier node with these encoded scalars; null where there are none, or where a result
  // might be one of them, or look at it.
  const std::vector<IValue>* known_numbers(const std::string& scalars) const {
    const auto found = known_numbers_.find(scalars);
    return found == known_numbers_.end() ? nullptr : &found->second;
  }

  void remember_numbers(std::string scalars, const IValue* given) {
    std::vector<IValue> converted(given, given + numbers.size());
    const auto is_tensor = [](const IValue& one) { return one.isTensor(); };
    if (!may_share_constants() && std::any_of(converted.begin(), converted.end(), is_tensor)) return;
    if (known_numbers_.size() >= KNOWN_NUMBERS_MAX) known_numbers_.clear();
    known_numbers_.emplace(std::move(scalars), std::move(converted));
  }

  std::vector<NumberHole> numbers;
  int32_t tensor_count = 0;
  int32_t number_count = 0;  // that a node gives, for all of `numbers`
  const std::vector<bool> fresh;
  const std::vector<int32_t> writes;
  const bool resizes, appends, zeroed, in_grad_mode, attends;
  const std::vector<int32_t> own;  // places of results that look as the kernel has them, whatever was predicted

 private:
  // A result that an op did not make is no tensor; kernels look at their arguments without asking.
  static const at::Tensor& needed(const at::Tensor& tensor) {
    TORCH_CHECK(tensor.defined(), "Expected a tensor where an earlier op made none.");
    return tensor;
  }

  static constexpr size_t KNOWN_NUMBERS_MAX = 64;

  enum class Fill : uint8_t { constant, number, tensor, optional_tensor, tensors, optional_tensors };

  struct Part {
    Fill fill = Fill::constant;
    int32_t first = 0;  // of the holes that it fills
    IValue constant;
    std::vector<bool> is_hole;
  };

  static std::vector<at::Tensor> into_vector(torch::jit::Stack& stack) {
    return std::move(stack.back()).toTensorVector();
  }

  bool may_share_constants() const {
    return writes.empty() && std::all_of(fresh.begin(), fresh.end(), [](bool one) { return one; });
  }

  void add(size_t place, py::handle given) {
    const c10::Argument& declared = handle_.schema().arguments()[place];
    Part& part = parts_[place];
    TypePtr type = declared.real_type();
    bool optional = false;
    if (type->kind() == TypeKind::OptionalType) {
      type = type->expectRef<c10::OptionalType>().getElementType();
      optional = true;
    }
    if (given.is(tensor_hole_)) {
      if (type->kind() != TypeKind::TensorType) throw NotNative("a tensor where none is declared");
      part.fill = optional ? Fill::optional_tensor : Fill::tensor;
      part.first = tensor_count++;
    } else if (given.is(number_hole_)) {
      part.fill = Fill::number;
      part.first = static_cast<int32_t>(numbers.size());
      numbers.emplace_back(declared.real_type(), declared.N(), type->kind(), allow_numbers_);
      ++number_count;
    } else if (py::isinstance<py::list>(given) && has(given, tensor_hole_)) {
      add_tensors(part, type, py::reinterpret_borrow<py::list>(given));
    } else if (py::isinstance<py::list>(given) && has(given, number_hole_)) {
      if (type->isSubtypeOf(*c10::ListType::ofTensors())) throw NotNative("numbers in a list of tensors");
      part.fill = Fill::number;
      part.first = static_cast<int32_t>(numbers.size());
      add_numbers(declared, py::reinterpret_borrow<py::list>(given));
    } else {
      torch::jit::ToIValueAllowNumbersAsTensors guard(allow_numbers_);
      part.constant = torch::jit::toIValue(given, declared.real_type(), declared.N());
      has_constant_tensor_ = has_constant_tensor_ || (part.constant.isTensor() && part.constant.toTensor().defined());
      if (part.constant.isTensorList() && part.constant.toTensorList().size() != 0)
        throw NotNative("numbers in a list of tensors");
    }
  }

  static bool has(py::handle list, const py::object& hole) {
    for (const py::handle item : list)
      if (item.is(hole)) return true;
    return false;
  }

  void add_numbers(const c10::Argument& declared, const py::list& given) {
    NumberHole& hole = numbers.emplace_back(declared.real_type(), declared.N(), TypeKind::ListType, allow_numbers_);
    py::list items;
    hole.count = 0;
    for (const py::handle item : given) {
      if (item.is_none()) throw NotNative("a list of numbers and nothing");
      items.append(item.is(number_hole_) ? py::none() : py::reinterpret_borrow<py::object>(item));
      hole.count += item.is(number_hole_);
    }
    hole.items = items;
    number_count += hole.count;
  }

  void add_tensors(Part& part, const TypePtr& type, const py::list& given) {
    if (type->kind() != TypeKind::ListType) throw NotNative("a list where none is declared");
    const TypePtr element = type->expectRef<c10::ListType>().getElementType();
    const bool optional = element->kind() == TypeKind::OptionalType;
    if (!element->isSubtypeOf(*c10::OptionalType::ofTensor())) throw NotNative("tensors in a list of something else");
    part.fill = optional ? Fill::optional_tensors : Fill::tensors;
    part.first = tensor_count;
    for (const py::handle item : given) {
      const bool hole = item.is(tensor_hole_);
      if (!hole && !(optional && item.is_none())) throw NotNative("a list of tensors and something else");
      part.is_hole.push_back(hole);
      tensor_count += hole;
    }
  }

  c10::OperatorHandle handle_;
  py::object tensor_hole_, number_hole_;
  bool allow_numbers_;
  bool has_constant_tensor_ = false;
  bool returns_list_ = false;
  std::vector<Part> parts_;
  std::unordered_map<std::string, std::vector<IValue>> known_numbers_;
};

}  // namespace djinn
