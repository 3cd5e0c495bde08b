// What an op's schema says, plans for calls of it, and the recorded nodes.
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>
#include "storage.h"

namespace djinn {
enum class Kind : uint8_t { fixed, tensor, tensors, number, real, generator, numbers };

struct Argument {
  Kind kind;
  bool written = false, keyword = false, has_default = false;
  bool in_training = false;  // written only where the argument `training` is true
  IValue fallback;  // its default
  c10::TypePtr type;
  std::string name;
};

// `ordinary`: recorded as it is when its inputs allow. `stays`: on plain tensors it runs on the host.
struct OpInfo {
  c10::OperatorHandle op;
  std::vector<Argument> arguments;
  int positional = 0, size_argument = -1, device_argument = -1, training_argument = -1;
  bool ordinary = false, stays = false, view = false, writes = false, random = false, composite = false, alias = false, factory = false,
       made_here = false;
  py::object function;  // the OpOverload
  bool writes_argument(size_t i, at::ArrayRef<IValue> values) const {
    auto& argument = arguments[i];
    return argument.written && !(argument.in_training && training_argument >= 0 && !values[training_argument].toBool());
  }
  explicit OpInfo(const c10::OperatorHandle& op) : op(op) {}
};

enum class OutKind : uint8_t { fresh, view, same, none };
struct Out {
  OutKind kind;
  const Layout* layout;
  int64_t offset;
  int input;  // of a view, or of the input that is returned
};

// What a call returns, found once for all calls with the same key.
struct Plan {
  uint64_t hash = 0;
  c10::SmallVector<uint64_t, 16> key;
  std::string packed;  // msgpack of the wire's Template
  int n_inputs = 0, n_scalars = 0, n_new = 0;
  bool simple = false, dynamic = false, random = false, resizes = false, reaches = false;
  enum class Shape : uint8_t { single, several, list, nothing } shape = Shape::single;
  c10::SmallVector<Out, 2> outs;
  c10::SmallVector<IValue, 1> literals;
  c10::SmallVector<int, 2> written;
  py::object python;
  std::string name;
};

struct Input {
  uint64_t id;
  LazyStorage* storage;
  const Layout* layout;
  int64_t offset;
  const Tensor* tensor;
};

// A number as two or three words: its kind and its bits.
enum NumberTag : uint64_t { kInteger = 1, kReal = 2, kBoolean = 3, kComplex = 4 };

struct Call {
  c10::SmallVector<Input, 6> inputs;
  c10::SmallVector<uint64_t, 32> key;
  c10::SmallVector<uint64_t, 8> scalars;
  c10::SmallVector<int, 8> first_input;  // of each argument, -1 for none
  uint64_t left_out = 0;                 // arguments that have their default, by bit
  int n_scalars = 0;
  bool any_lazy = false, any_plain = false, any_unready = false, plain_written = false, exposed_written = false, odd = false,
       all_zero_dim = true, known_integers = true, generator = false, foreign = false;
};
}  // namespace djinn
