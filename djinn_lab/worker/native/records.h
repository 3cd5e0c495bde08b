// What a run needs of its program's nodes beyond the plan: the numbers of values, and scalars.
#pragma once

#include <bit>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <c10/util/SmallVector.h>

#include "../../srg/native/messagepack.h"
#include "plan.h"

namespace djinn {

class Records {
 public:
  virtual ~Records() = default;
  virtual size_t size() const = 0;
  // The value of a source.
  virtual py::object source(size_t place) const = 0;
  // The value that is the `place`-th output of a node.
  virtual py::object output(size_t node, size_t place) const = 0;
  // Fills the number holes of a node's op; false when only a call from Python can say what is wrong with them.
  virtual bool numbers(size_t node, Op& op, IValue* into) const = 0;

 protected:
  static bool convert(const Op& op, PyObject* const* given, size_t count, IValue* into) {
    if (count != static_cast<size_t>(op.number_count)) return false;
    try {
      for (const NumberHole& hole : op.numbers) {
        *into++ = hole.convert(given);
        given += hole.count;
      }
    } catch (const std::exception&) {
      return false;
    }
    return true;
  }
};

// Of sequences of djinn_lab.srg.program.NodeRecord and Source.
class DecodedRecords : public Records {
 public:
  DecodedRecords(const py::object& nodes, const py::object& sources)
      : nodes_(as_fast(nodes)), sources_(as_fast(sources)) {}

  size_t size() const override { return PySequence_Fast_GET_SIZE(nodes_.ptr()); }

  py::object source(size_t place) const override {
    static PyObject* const name = PyUnicode_InternFromString("value");
    return get(sources_, place, name);
  }

  py::object output(size_t node, size_t place) const override {
    static PyObject* const name = PyUnicode_InternFromString("outputs");
    return py::reinterpret_borrow<py::tuple>(get(nodes_, node, name))[place];
  }

  bool numbers(size_t node, Op& op, IValue* into) const override {
    static PyObject* const name = PyUnicode_InternFromString("scalars");
    const py::object scalars = get(nodes_, node, name);
    return convert(op, PySequence_Fast_ITEMS(scalars.ptr()), PySequence_Fast_GET_SIZE(scalars.ptr()), into);
  }

 private:
  static py::object as_fast(const py::object& rows) {
    PyObject* found = PySequence_Fast(rows.ptr(), "expected a sequence");
    if (found == nullptr) throw py::error_already_set();
    return py::reinterpret_steal<py::object>(found);
  }

  static py::object get(const py::object& rows, size_t place, PyObject* name) {
    if (place >= static_cast<size_t>(PySequence_Fast_GET_SIZE(rows.ptr()))) throw py::index_error("no such row");
    PyObject* found = PyObject_GetAttr(PySequence_Fast_GET_ITEM(rows.ptr(), place), name);
    if (found == nullptr) throw py::error_already_set();
    return py::reinterpret_steal<py::object>(found);
  }

  const py::object nodes_, sources_;
};

// Reads a number, a bool or nothing as a Python object; null for a value of another kind.
inline py::object read_leaf(djinn_wire::Input& input) {
  const uint8_t* const at = input.at();
  input.skip();
  using djinn_wire::big_endian;
  const uint8_t* const bits = at + 1;
  if (*at <= 0x7f) return py::int_(*at);
  if (*at >= 0xe0) return py::int_(static_cast<int8_t>(*at));
  switch (*at) {
    case 0xc0: return py::none();
    case 0xc2: return py::bool_(false);
    case 0xc3: return py::bool_(true);
    case 0xca: return py::float_(std::bit_cast<float>(static_cast<uint32_t>(big_endian<4>(bits))));
    case 0xcb: return py::float_(std::bit_cast<double>(big_endian<8>(bits)));
    case 0xcc: return py::int_(big_endian<1>(bits));
    case 0xcd: return py::int_(big_endian<2>(bits));
    case 0xce: return py::int_(big_endian<4>(bits));
    case 0xcf: return py::int_(big_endian<8>(bits));
    case 0xd0: return py::int_(static_cast<int8_t>(big_endian<1>(bits)));
    case 0xd1: return py::int_(static_cast<int16_t>(big_endian<2>(bits)));
    case 0xd2: return py::int_(static_cast<int32_t>(big_endian<4>(bits)));
    case 0xd3: return py::int_(static_cast<int64_t>(big_endian<8>(bits)));
    default: return {};
  }
}

// Of an encoded program with a known plan: most of it is never decoded. Throws for bytes that are not laid out as
// djinn_lab.srg.plan_key reads them.
class EncodedProgram : public Records {
 public:
  explicit EncodedProgram(const py::bytes& encoded) : encoded_(encoded), begin_(bytes_of(encoded_)) {
    djinn_wire::Input input{std::string_view(encoded_)};
    for (const char* table : {"\x8a\xa5metas", "\xa9templates", "\xa6scopes"}) {
      input.literal(table);
      input.skip();
    }
    input.literal("\xa7sources");
    read_sources(input);
    input.literal("\xa5nodes");
    read_nodes(input);
    rest_ = offset(input);
    end_ = rest_ + input.left();
  }

  size_t size() const override { return nodes_.size(); }

  py::object source(size_t place) const override { return sources_.at(place); }

  py::object output(size_t node, size_t place) const override {
    djinn_wire::Input input = from(nodes_.at(node).outputs);
    if (place >= input.array()) throw std::invalid_argument("a node has fewer outputs than planned");
    for (; place != 0; --place) input.skip();
    return read_leaf(input);
  }

  bool numbers(size_t node, Op& op, IValue* into) const override {
    const Node& one = nodes_.at(node);
    std::string scalars(begin_ + one.scalars, begin_ + one.scalars_end);
    if (const auto* known = op.known_numbers(scalars)) {
      std::copy(known->begin(), known->end(), into);
      return true;
    }
    djinn_wire::Input input(scalars);
    const size_t count = input.array();
    c10::SmallVector<py::object, 4> held;
    c10::SmallVector<PyObject*, 4> given;
    for (size_t place = 0; place < count; ++place) {
      held.push_back(read_leaf(input));
      if (!held.back()) return false;
      given.push_back(held.back().ptr());
    }
    if (!convert(op, given.data(), count, into)) return false;
    op.remember_numbers(std::move(scalars), into);
    return true;
  }

  // The bytes of one node.
  py::bytes node(size_t place) const { return cut(nodes_.at(place).begin, nodes_.at(place).end); }

  // The bytes of the sources that the session does not hold.
  py::list sent() const {
    py::list found;
    for (const auto& [begin, end] : sent_) found.append(cut(begin, end));
    return found;
  }

  // The values of held sources that `tensors` has nothing for.
  py::list missing(const py::dict& tensors) const {
    py::list found;
    for (const py::object& value : held_) {
      PyObject* tensor = PyDict_GetItem(tensors.ptr(), value.ptr());
      if (tensor == nullptr || tensor == Py_None) found.append(value);
    }
    return found;
  }

  // A map of the fields behind the nodes.
  py::bytes rest() const { return py::bytes("\x85" + std::string(begin_ + rest_, begin_ + end_)); }

 private:
  struct Node {
    size_t begin, outputs, scalars, scalars_end, end;
  };

  static const char* bytes_of(const py::bytes& bytes) { return std::string_view(bytes).data(); }

  size_t offset(const djinn_wire::Input& input) const {
    return static_cast<size_t>(reinterpret_cast<const char*>(input.at()) - begin_);
  }

  djinn_wire::Input from(size_t begin) const { return djinn_wire::Input({begin_ + begin, end_ - begin}); }

  py::bytes cut(size_t begin, size_t end) const { return {begin_ + begin, end - begin}; }

  void read_sources(djinn_wire::Input& input) {
    const size_t count = input.array();
    sources_.reserve(count);
    for (size_t place = 0; place < count; ++place) {
      const size_t begin = offset(input);
      input.array_of(6);
      sources_.push_back(py::int_(input.number()));
      for (int field = 0; field < 3; ++field) input.skip();  // storage, meta, residency
      const bool no_blob = input.nil(), held = no_blob && input.nil();
      if (!no_blob) input.skip();
      if (!held) input.skip();
      if (held) held_.push_back(sources_.back());
      else sent_.emplace_back(begin, offset(input));
    }
  }

  void read_nodes(djinn_wire::Input& input) {
    const size_t count = input.array();
    nodes_.reserve(count);
    for (size_t place = 0; place < count; ++place) {
      Node& node = nodes_.emplace_back();
      node.begin = offset(input);
      input.array_of(8);
      input.skip();  // template
      input.skip();  // inputs
      node.outputs = offset(input);
      for (int field = 0; field < 4; ++field) input.skip();  // outputs, output_metas, storages, scope
      node.scalars = offset(input);
      input.skip();
      node.scalars_end = offset(input);
      input.skip();  // dynamic
      node.end = offset(input);
    }
  }

  const py::bytes encoded_;
  const char* const begin_;
  size_t rest_ = 0, end_ = 0;
  std::vector<py::object> sources_, held_;
  std::vector<std::pair<size_t, size_t>> sent_;
  std::vector<Node> nodes_;
};

}  // namespace djinn
