// What a run needs of its program's nodes beyond the plan: the numbers of values, and scalars.
#pragma once

#include <bit>
#include <stdexcept>
#include <string_view>
#include <vector>

#include <c10/util/SmallVector.h>

#include "plan.h"

namespace djinn {

class Records {
 public:
  virtual ~Records() = default;
  virtual size_t size() const = 0;
  // The value that is the `place`-th output of a node.
  virtual py::object output(size_t node, size_t place) const = 0;
  // Fills the number holes of a node's op; false when only a call from Python can say what is wrong with them.
  virtual bool numbers(size_t node, const Op& op, IValue* into) const = 0;

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

// Of a sequence of djinn_lab.srg.program.NodeRecord.
class DecodedRecords : public Records {
 public:
  explicit DecodedRecords(const py::object& nodes)
      : nodes_(py::reinterpret_steal<py::object>(PySequence_Fast(nodes.ptr(), "expected a sequence of nodes"))) {
    if (!nodes_) throw py::error_already_set();
  }

  size_t size() const override { return PySequence_Fast_GET_SIZE(nodes_.ptr()); }

  py::object output(size_t node, size_t place) const override {
    static PyObject* const name = PyUnicode_InternFromString("outputs");
    return py::reinterpret_borrow<py::tuple>(get(node, name))[place];
  }

  bool numbers(size_t node, const Op& op, IValue* into) const override {
    static PyObject* const name = PyUnicode_InternFromString("scalars");
    const py::object scalars = get(node, name);
    return convert(op, PySequence_Fast_ITEMS(scalars.ptr()), PySequence_Fast_GET_SIZE(scalars.ptr()), into);
  }

 private:
  py::object get(size_t node, PyObject* name) const {
    PyObject* found = PyObject_GetAttr(PySequence_Fast_GET_ITEM(nodes_.ptr(), node), name);
    if (found == nullptr) throw py::error_already_set();
    return py::reinterpret_steal<py::object>(found);
  }

  py::object nodes_;
};

// Reads MessagePack, as far as a node uses it. Throws std::invalid_argument for anything else.
class Reader {
 public:
  Reader(const uint8_t* begin, const uint8_t* end) : at_(begin), end_(end) {}

  const uint8_t* at() const { return at_; }

  size_t array() {
    const uint8_t tag = byte();
    if ((tag & 0xf0) == 0x90) return tag & 0x0f;
    if (tag == 0xdc) return big_endian<uint16_t>();
    if (tag == 0xdd) return big_endian<uint32_t>();
    throw std::invalid_argument("an array was expected");
  }

  void skip_flat_array() {
    for (size_t left = array(); left != 0; --left) skip_leaf();
  }

  // Of a number, a bool or nothing.
  void skip_leaf() {
    const uint8_t tag = byte();
    if (tag <= 0x7f || tag >= 0xe0 || tag == 0xc0 || tag == 0xc2 || tag == 0xc3) return;
    if (tag == 0xca || tag == 0xce || tag == 0xd2) take(4);
    else if (tag == 0xcb || tag == 0xcf || tag == 0xd3) take(8);
    else if (tag == 0xcc || tag == 0xd0) take(1);
    else if (tag == 0xcd || tag == 0xd1) take(2);
    else throw std::invalid_argument("a number was expected");
  }

  // A number, a bool or nothing as a Python object.
  py::object leaf() {
    const uint8_t tag = byte();
    if (tag <= 0x7f) return py::int_(tag);
    if (tag >= 0xe0) return py::int_(static_cast<int8_t>(tag));
    switch (tag) {
      case 0xc0: return py::none();
      case 0xc2: return py::bool_(false);
      case 0xc3: return py::bool_(true);
      case 0xca: return py::float_(std::bit_cast<float>(big_endian<uint32_t>()));
      case 0xcb: return py::float_(std::bit_cast<double>(big_endian<uint64_t>()));
      case 0xcc: return py::int_(byte());
      case 0xcd: return py::int_(big_endian<uint16_t>());
      case 0xce: return py::int_(big_endian<uint32_t>());
      case 0xcf: return py::int_(big_endian<uint64_t>());
      case 0xd0: return py::int_(static_cast<int8_t>(byte()));
      case 0xd1: return py::int_(static_cast<int16_t>(big_endian<uint16_t>()));
      case 0xd2: return py::int_(static_cast<int32_t>(big_endian<uint32_t>()));
      case 0xd3: return py::int_(static_cast<int64_t>(big_endian<uint64_t>()));
      default: throw std::invalid_argument("a number was expected");
    }
  }

 private:
  const uint8_t* take(size_t count) {
    if (static_cast<size_t>(end_ - at_) < count) throw std::invalid_argument("the bytes end too early");
    const uint8_t* found = at_;
    at_ += count;
    return found;
  }

  uint8_t byte() { return *take(1); }

  template <typename Type>
  Type big_endian() {
    const uint8_t* bytes = take(sizeof(Type));
    Type found = 0;
    for (size_t i = 0; i < sizeof(Type); ++i) found = static_cast<Type>(found << 8 | bytes[i]);
    return found;
  }

  const uint8_t* at_;
  const uint8_t* end_;
};

// Of encoded nodes, most of which are never decoded.
class EncodedRecords : public Records {
 public:
  explicit EncodedRecords(const py::bytes& encoded) : encoded_(encoded) {
    const std::string_view bytes(encoded_);
    begin_ = reinterpret_cast<const uint8_t*>(bytes.data());
    end_ = begin_ + bytes.size();
    Reader reader(begin_, end_);
    const size_t count = reader.array();
    if (count > bytes.size()) throw std::invalid_argument("more nodes than bytes");
    rows_.reserve(count);
    for (size_t node = 0; node < count; ++node) {
      Row& row = rows_.emplace_back();
      row.begin = offset(reader);
      if (reader.array() != FIELDS) throw std::invalid_argument("another kind of node");
      reader.skip_leaf();  // template
      reader.skip_flat_array();  // inputs
      row.outputs = offset(reader);
      for (int field = 0; field < 3; ++field) reader.skip_flat_array();  // outputs, output_metas, storages
      reader.skip_leaf();  // scope
      row.scalars = offset(reader);
      reader.skip_flat_array();
      reader.skip_leaf();  // dynamic
      row.end = offset(reader);
    }
    if (reader.at() != end_) throw std::invalid_argument("bytes behind the nodes");
  }

  size_t size() const override { return rows_.size(); }

  py::object output(size_t node, size_t place) const override {
    Reader reader(begin_ + rows_.at(node).outputs, end_);
    if (place >= reader.array()) throw std::invalid_argument("a node has fewer outputs than planned");
    for (; place != 0; --place) reader.skip_leaf();
    return reader.leaf();
  }

  bool numbers(size_t node, const Op& op, IValue* into) const override {
    Reader reader(begin_ + rows_.at(node).scalars, end_);
    const size_t count = reader.array();
    c10::SmallVector<py::object, 4> held;
    c10::SmallVector<PyObject*, 4> given;
    for (size_t place = 0; place < count; ++place) {
      held.push_back(reader.leaf());
      given.push_back(held.back().ptr());
    }
    return convert(op, given.data(), count, into);
  }

  // The bytes of one node.
  py::bytes encoded(size_t node) const {
    const Row& row = rows_.at(node);
    return py::bytes(reinterpret_cast<const char*>(begin_) + row.begin, row.end - row.begin);
  }

 private:
  static constexpr size_t FIELDS = 8;

  struct Row {
    uint32_t begin, outputs, scalars, end;
  };

  uint32_t offset(const Reader& reader) const { return static_cast<uint32_t>(reader.at() - begin_); }

  const py::bytes encoded_;
  const uint8_t* begin_;
  const uint8_t* end_;
  std::vector<Row> rows_;
};

}  // namespace djinn
