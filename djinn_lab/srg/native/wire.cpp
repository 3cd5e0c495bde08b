// The relative form of programs and the material of plan keys: djinn_lab/srg/relative.py and plan_key.py say
// what they are and have the same in Python. Everything here may come from a stranger: every read is bounded by
// the end of the input, nothing recurses, and whatever is not exactly as expected raises ValueError.

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace {

constexpr int64_t kNumberMax = int64_t{1} << 62;

struct Malformed : std::runtime_error {
  using std::runtime_error::runtime_error;
};

void expect(bool right, const char* problem) {
  if (!right) throw Malformed(problem);
}

uint64_t zigzag(int64_t difference) {
  return (static_cast<uint64_t>(difference) << 1) ^ static_cast<uint64_t>(difference >> 63);
}

int64_t difference_of(uint64_t zigzag) {
  return static_cast<int64_t>(zigzag >> 1) ^ -static_cast<int64_t>(zigzag & 1);
}

uint64_t big_endian(const uint8_t* at, size_t count) {
  uint64_t value = 0;
  for (size_t index = 0; index < count; ++index) value = value << 8 | at[index];
  return value;
}

class Output {
 public:
  explicit Output(size_t expected) { bytes_.reserve(expected); }

  void raw(const uint8_t* from, const uint8_t* to) {
    bytes_.append(reinterpret_cast<const char*>(from), static_cast<size_t>(to - from));
  }

  void byte(uint8_t value) { bytes_.push_back(static_cast<char>(value)); }

  void unsigned_number(uint64_t value) {
    if (value < 0x80) {
      byte(static_cast<uint8_t>(value));
    } else if (value <= UINT8_MAX) {
      tagged(0xcc, value, 1);
    } else if (value <= UINT16_MAX) {
      tagged(0xcd, value, 2);
    } else if (value <= UINT32_MAX) {
      tagged(0xce, value, 4);
    } else {
      tagged(0xcf, value, 8);
    }
  }

  void number(int64_t value) {
    if (value >= 0) {
      unsigned_number(static_cast<uint64_t>(value));
    } else if (value >= -32) {
      byte(static_cast<uint8_t>(value));
    } else if (value >= INT8_MIN) {
      tagged(0xd0, static_cast<uint64_t>(value), 1);
    } else if (value >= INT16_MIN) {
      tagged(0xd1, static_cast<uint64_t>(value), 2);
    } else if (value >= INT32_MIN) {
      tagged(0xd2, static_cast<uint64_t>(value), 4);
    } else {
      tagged(0xd3, static_cast<uint64_t>(value), 8);
    }
  }

  void binary(std::string_view content) {
    const size_t count = content.size();
    const int width = count <= UINT8_MAX ? 1 : count <= UINT16_MAX ? 2 : 4;
    tagged(width == 1 ? 0xc4 : width == 2 ? 0xc5 : 0xc6, count, width);
    bytes_.append(content);
  }

  void array(uint64_t count) {
    if (count < 16) {
      byte(static_cast<uint8_t>(0x90 | count));
    } else {
      const bool narrow = count <= UINT16_MAX;
      tagged(narrow ? 0xdc : 0xdd, count, narrow ? 2 : 4);
    }
  }

  const std::string& bytes() const { return bytes_; }

 private:
  void tagged(uint8_t tag, uint64_t value, int width) {
    char buffer[9];
    buffer[0] = static_cast<char>(tag);
    for (int index = 0; index < width; ++index) {
      buffer[1 + index] = static_cast<char>(value >> 8 * (width - 1 - index));
    }
    bytes_.append(buffer, static_cast<size_t>(1 + width));
  }

  std::string bytes_;
};

class Input {
 public:
  explicit Input(std::string_view data)
      : at_(reinterpret_cast<const uint8_t*>(data.data())), end_(at_ + data.size()) {}

  const uint8_t* at() const { return at_; }
  size_t left() const { return static_cast<size_t>(end_ - at_); }

  void literal(std::string_view expected) {
    const uint8_t* found = take(expected.size());
    expect(std::memcmp(found, expected.data(), expected.size()) == 0, "another field was expected");
  }

  bool nil() {
    if (peek() != 0xc0) return false;
    ++at_;
    return true;
  }

  // Only the shortest form of each number, as encoders write it: then rewriting loses nothing.
  int64_t number() {
    const uint8_t tag = *take(1);
    if (tag < 0x80) return tag;
    if (tag >= 0xe0) return static_cast<int8_t>(tag);
    expect((tag >= 0xcc && tag <= 0xcf) || (tag >= 0xd0 && tag <= 0xd3), "an integer was expected");
    const bool is_signed = tag >= 0xd0;
    const size_t width = size_t{1} << (tag & 3);
    const uint64_t raw = big_endian(take(width), width);
    if (!is_signed) {
      expect(raw <= INT64_MAX && raw >= (width == 1 ? 0x80 : uint64_t{1} << 4 * width),
             "an integer is too large or not in its shortest form");
      return static_cast<int64_t>(raw);
    }
    const int shift = static_cast<int>(64 - 8 * width);
    const int64_t value = static_cast<int64_t>(raw << shift) >> shift;
    const int64_t narrower = width == 1 ? -32 : -(int64_t{1} << (4 * width - 1));
    expect(value < narrower, "an integer is not in its shortest form");
    return value;
  }

  uint64_t array() {
    const uint8_t tag = *take(1);
    uint64_t count = tag & 15;
    if (tag == 0xdc) {
      count = big_endian(take(2), 2);
      expect(count >= 16, "an array is not in its shortest form");
    } else if (tag == 0xdd) {
      count = big_endian(take(4), 4);
      expect(count > UINT16_MAX, "an array is not in its shortest form");
    } else {
      expect((tag & 0xf0) == 0x90, "an array was expected");
    }
    expect(count <= left(), "an array is longer than the bytes that are left");
    return count;
  }

  void array_of(uint64_t count) { expect(array() == count, "a record has too many or too few fields"); }

  std::string_view binary() {
    const uint8_t tag = *take(1);
    expect(tag >= 0xc4 && tag <= 0xc6, "bytes were expected");
    const size_t width = size_t{1} << (tag - 0xc4);
    const size_t count = big_endian(take(width), width);
    return {reinterpret_cast<const char*>(take(count)), count};
  }

  // A scalar of a node: a truth value, an integer, a float or a complex number.
  void scalar() {
    const uint8_t tag = peek();
    if (tag == 0x83) {
      literal("\x83\xa1t\xa7" "complex\xa4real\xcb");
      take(8);
      literal("\xa4imag\xcb");
      take(8);
    } else {
      expect(tag < 0x80 || tag >= 0xe0 || tag == 0xc2 || tag == 0xc3 || (tag >= 0xca && tag <= 0xd3),
             "a scalar is of another kind");
      skip();
    }
  }

  // Any one value with all that it contains.
  void skip() {
    for (uint64_t pending = 1; pending > 0; --pending) {
      expect(pending <= left(), "the bytes end too early");
      pending += skip_one();
    }
  }

 private:
  uint8_t peek() const {
    expect(at_ < end_, "the bytes end too early");
    return *at_;
  }

  const uint8_t* take(size_t count) {
    expect(count <= left(), "the bytes end too early");
    const uint8_t* taken = at_;
    at_ += count;
    return taken;
  }

  // Returns how many values it contains, which follow.
  uint64_t skip_one() {
    const uint8_t tag = *take(1);
    if (tag < 0x80 || tag >= 0xe0) return 0;
    if (tag < 0x90) return uint64_t{2} * (tag & 15);
    if (tag < 0xa0) return tag & 15;
    if (tag < 0xc0) return take(tag & 31), 0;
    switch (tag) {
      case 0xc0: case 0xc2: case 0xc3: return 0;
      case 0xc4: case 0xd9: return take(big_endian(take(1), 1)), 0;
      case 0xc5: case 0xda: return take(big_endian(take(2), 2)), 0;
      case 0xc6: case 0xdb: return take(big_endian(take(4), 4)), 0;
      case 0xcc: case 0xd0: return take(1), 0;
      case 0xcd: case 0xd1: return take(2), 0;
      case 0xca: case 0xce: case 0xd2: return take(4), 0;
      case 0xcb: case 0xcf: case 0xd3: return take(8), 0;
      case 0xdc: return big_endian(take(2), 2);
      case 0xdd: return big_endian(take(4), 4);
      case 0xde: return 2 * big_endian(take(2), 2);
      case 0xdf: return 2 * big_endian(take(4), 4);
      default: throw Malformed("a value is of no kind that programs have");
    }
  }

  const uint8_t* at_;
  const uint8_t* end_;
};

struct Origin {
  int64_t highest, floor, call;
};

int64_t in_range(int64_t value) {
  expect(value >= 0 && value < kNumberMax, "a number is out of range");
  return value;
}

// The two directions. Each gets what was read and returns what is to be written.
class ToRelative {
 public:
  explicit ToRelative(Origin origin) : at(origin) {}

  int64_t id(int64_t value) const {
    in_range(value);
    return value >= at.floor ? negative(at.highest - value) : value;
  }

  int64_t defined(int64_t value) {
    const int64_t number = id(value);
    at.highest = std::max(at.highest, value);
    return number;
  }

  int64_t scope_call(int64_t call) {
    if (in_range(call) == 0) return 0;
    const int64_t before = at.call;
    at.call = call;
    return negative(call - before);
  }

  int64_t node_scope(int64_t scope) {
    in_range(scope);
    const int64_t before = scope_;
    scope_ = scope;
    return static_cast<int64_t>(zigzag(scope - before));
  }

  std::string_view random_state(std::string_view found, const std::string_view* last) const {
    expect(!found.empty(), "an empty random state");
    return last != nullptr && found == *last ? std::string_view() : found;
  }

  Origin at;

 private:
  static int64_t negative(int64_t difference) { return -1 - static_cast<int64_t>(zigzag(difference)); }

  int64_t scope_ = 0;
};

class ToWhole {
 public:
  explicit ToWhole(Origin origin) : at(origin) {}

  int64_t id(int64_t number) const {
    return in_range(number < 0 ? at.highest - of_negative(number) : number);
  }

  int64_t defined(int64_t number) {
    const int64_t value = id(number);
    at.highest = std::max(at.highest, value);
    return value;
  }

  int64_t scope_call(int64_t number) {
    expect(number <= 0, "a number is out of range");
    if (number == 0) return 0;
    return at.call = in_range(at.call + of_negative(number));
  }

  int64_t node_scope(int64_t number) {
    expect(number >= 0, "a number is out of range");
    return scope_ = in_range(scope_ + difference_of(static_cast<uint64_t>(number)));
  }

  std::string_view random_state(std::string_view found, const std::string_view* last) const {
    expect(!found.empty() || last != nullptr, "no random state came back yet");
    return found.empty() ? *last : found;
  }

  Origin at;

 private:
  static int64_t of_negative(int64_t number) { return difference_of(static_cast<uint64_t>(-1 - number)); }

  int64_t scope_ = 0;
};

template <class Direction>
class Rewriting {
 public:
  Rewriting(std::string_view data, Origin origin, const std::string_view* state)
      : input_(data), copied_(input_.at()), output_(data.size() + data.size() / 4 + 16), to_(origin), state_(state) {}

  void run() {
    input_.literal("\x89\xa5metas");
    input_.skip();
    input_.literal("\xa9templates");
    input_.skip();
    input_.literal("\xa6scopes");
    for (uint64_t left = input_.array(); left > 0; --left) scope();
    input_.literal("\xa7sources");
    for (uint64_t left = input_.array(); left > 0; --left) source();
    next_floor_ = to_.at.highest + 1;
    if (to_.at.floor == 0) to_.at.floor = next_floor_;
    input_.literal("\xa5nodes");
    for (uint64_t left = input_.array(); left > 0; --left) node();
    input_.literal("\xa4keep");
    ids<false>();
    input_.literal("\xa5" "fetch");
    ids<false>();
    input_.literal("\xa7release");
    ids<false>();
    input_.literal("\xa9rng_state");
    if (!input_.nil()) {
      copy();
      output_.binary(to_.random_state(input_.binary(), state_));
      copied_ = input_.at();
    }
    expect(input_.left() == 0, "bytes follow the program");
    copy();
  }

  const std::string& bytes() const { return output_.bytes(); }
  Origin next() const { return {to_.at.highest, next_floor_, to_.at.call}; }

 private:
  // What was read since the last copy goes over as it is.
  void copy() { output_.raw(copied_, input_.at()); }

  template <class Change>
  void change(Change changed) {
    copy();
    output_.number(changed(input_.number()));
    copied_ = input_.at();
  }

  template <bool defines>
  void id() {
    change([this](int64_t number) { return defines ? to_.defined(number) : to_.id(number); });
  }

  template <bool defines>
  void ids() {
    for (uint64_t left = input_.array(); left > 0; --left) {
      if (!input_.nil()) id<defines>();
    }
  }

  void scope() {
    input_.array_of(5);
    input_.skip();
    change([this](int64_t number) { return to_.scope_call(number); });
    for (int field = 2; field < 5; ++field) input_.skip();
  }

  void source() {
    input_.array_of(6);
    id<true>();
    id<true>();
    for (int field = 2; field < 6; ++field) input_.skip();
  }

  void node() {
    input_.array_of(8);
    input_.skip();
    ids<false>();
    ids<true>();
    input_.skip();
    ids<true>();
    change([this](int64_t number) { return to_.node_scope(number); });
    input_.skip();
    input_.skip();
  }

  Input input_;
  const uint8_t* copied_;
  Output output_;
  Direction to_;
  const std::string_view* state_;
  int64_t next_floor_ = 0;
};

// Numbers ids in the order in which they are met.
class Numbering {
 public:
  Numbering() : slots_(1024), seed_(process_seed()) {}

  uint64_t of(int64_t id) {
    Slot* slot = find(id);
    if (slot->number != 0) return slot->number - 1;
    *slot = {id, ++count_};
    const uint64_t number = count_ - 1;
    if (count_ * 2 > slots_.size()) grow();
    return number;
  }

 private:
  struct Slot {
    int64_t id = 0;
    uint64_t number = 0;  // from 1; 0 is free
  };

  // Nobody can choose ids that meet in one place.
  static uint64_t process_seed() {
    static const uint64_t seed = [] {
      std::random_device device;
      return static_cast<uint64_t>(device()) << 32 | device();
    }();
    return seed;
  }

  Slot* find(int64_t id) {
    uint64_t hash = static_cast<uint64_t>(id) + seed_;
    hash = (hash ^ hash >> 30) * 0xbf58476d1ce4e5b9;
    hash = (hash ^ hash >> 27) * 0x94d049bb133111eb;
    hash ^= hash >> 31;
    const size_t mask = slots_.size() - 1;
    size_t place = hash & mask;
    while (slots_[place].number != 0 && slots_[place].id != id) place = (place + 1) & mask;
    return &slots_[place];
  }

  void grow() {
    std::vector<Slot> old(slots_.size() * 2);
    old.swap(slots_);
    for (const Slot& slot : old) {
      if (slot.number != 0) *find(slot.id) = slot;
    }
  }

  std::vector<Slot> slots_;
  uint64_t seed_;
  uint64_t count_ = 0;
};

class PlanMaterial {
 public:
  explicit PlanMaterial(std::string_view data) : input_(data), output_(data.size()) {}

  void run() {
    output_.byte(0x97);
    input_.literal("\x89\xa5metas");
    same();
    input_.literal("\xa9templates");
    same();
    input_.literal("\xa6scopes");
    scopes();
    input_.literal("\xa7sources");
    rows(&PlanMaterial::source);
    input_.literal("\xa5nodes");
    rows(&PlanMaterial::node);
    input_.literal("\xa4keep");
    ids();
    input_.literal("\xa5" "fetch");
    ids();
    input_.literal("\xa7release");
    for (uint64_t left = input_.array(); left > 0; --left) input_.number();
    input_.literal("\xa9rng_state");
    if (!input_.nil()) input_.binary();
    expect(input_.left() == 0, "bytes follow the program");
  }

  const std::string& bytes() const { return output_.bytes(); }

 private:
  void same() {
    const uint8_t* from = input_.at();
    input_.skip();
    output_.raw(from, input_.at());
  }

  void scopes() {
    const uint64_t count = input_.array();
    for (uint64_t left = count; left > 0; --left) input_.skip();
    output_.unsigned_number(count);
  }

  void rows(void (PlanMaterial::*row)()) {
    const uint64_t count = input_.array();
    output_.array(count);
    for (uint64_t left = count; left > 0; --left) (this->*row)();
  }

  void id() { output_.unsigned_number(numbering_.of(in_range(input_.number()))); }

  void ids() {
    const uint64_t count = input_.array();
    output_.array(count);
    for (uint64_t left = count; left > 0; --left) {
      if (input_.nil()) {
        output_.byte(0xc0);
      } else {
        id();
      }
    }
  }

  void source() {
    input_.array_of(6);
    output_.byte(0x96);
    id();
    id();
    same();  // meta
    same();  // residency
    const bool no_blob = input_.nil();
    if (!no_blob) input_.skip();
    output_.byte(no_blob ? 0xc3 : 0xc2);
    if (input_.nil()) {
      output_.byte(0xc0);
    } else {
      output_.unsigned_number(input_.binary().size());
    }
  }

  void node() {
    input_.array_of(8);
    output_.byte(0x98);
    same();  // template
    ids();
    ids();
    same();  // metas
    ids();
    same();  // scope
    const uint64_t scalars = input_.array();
    for (uint64_t left = scalars; left > 0; --left) input_.scalar();
    output_.unsigned_number(scalars);
    same();  // dynamic
  }

  Input input_;
  Output output_;
  Numbering numbering_;
};

// ------------------------------------------------------------------------------------------------- Python

struct Buffer {
  Py_buffer view{};
  ~Buffer() { PyBuffer_Release(&view); }  // of an empty one: nothing
  std::string_view bytes() const { return {static_cast<const char*>(view.buf), static_cast<size_t>(view.len)}; }
};

// Runs it without the interpreter's lock; false and a Python exception when the bytes are wrong.
template <class Work>
bool done(Work& work) {
  std::string problem;
  bool no_memory = false;
  Py_BEGIN_ALLOW_THREADS;
  try {
    work.run();
  } catch (const std::bad_alloc&) {
    no_memory = true;
  } catch (const std::exception& error) {
    problem = error.what();
  }
  Py_END_ALLOW_THREADS;
  if (no_memory) PyErr_NoMemory();
  if (!problem.empty()) PyErr_SetString(PyExc_ValueError, problem.c_str());
  return !no_memory && problem.empty();
}

template <class Direction>
PyObject* rewrite(PyObject*, PyObject* arguments) {
  Buffer data, state;
  long long highest, floor, call;
  if (!PyArg_ParseTuple(arguments, "y*LLLz*", &data.view, &highest, &floor, &call, &state.view)) return nullptr;
  for (const long long number : {highest, floor, call}) {
    if (number < 0 || number > kNumberMax) {
      PyErr_SetString(PyExc_ValueError, "the origin is out of range");
      return nullptr;
    }
  }
  const std::string_view last = state.bytes();
  try {
    Rewriting<Direction> work(data.bytes(), {highest, floor, call}, state.view.buf == nullptr ? nullptr : &last);
    if (!done(work)) return nullptr;
    const std::string& bytes = work.bytes();
    const Origin next = work.next();
    return Py_BuildValue("y#(LLL)", bytes.data(), static_cast<Py_ssize_t>(bytes.size()),
                         static_cast<long long>(next.highest), static_cast<long long>(next.floor),
                         static_cast<long long>(next.call));
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
}

PyObject* plan_material(PyObject*, PyObject* argument) {
  Buffer data;
  if (PyObject_GetBuffer(argument, &data.view, PyBUF_SIMPLE) != 0) return nullptr;
  try {
    PlanMaterial work(data.bytes());
    if (!done(work)) return nullptr;
    const std::string& bytes = work.bytes();
    return PyBytes_FromStringAndSize(bytes.data(), static_cast<Py_ssize_t>(bytes.size()));
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
}

PyMethodDef methods[] = {
    {"to_relative", rewrite<ToRelative>, METH_VARARGS,
     "to_relative(program, highest, floor, call, state) -> (bytes, (highest, floor, call))"},
    {"to_whole", rewrite<ToWhole>, METH_VARARGS,
     "to_whole(relative, highest, floor, call, state) -> (bytes, (highest, floor, call))"},
    {"plan_material", plan_material, METH_O, "plan_material(program) -> bytes"},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "djinn_wire", "Programs on the wire, see djinn_lab/srg/relative.py.", 0, methods,
    nullptr, nullptr, nullptr, nullptr,
};

}  // namespace

PyMODINIT_FUNC PyInit_djinn_wire() { return PyModule_Create(&module); }
