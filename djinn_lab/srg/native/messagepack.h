// Reading and writing MessagePack, bounded by the end of the input. Nothing recurses.
#pragma once

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>

namespace djinn_wire {

struct Malformed : std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline void expect(bool right, const char* problem) {
  if (!right) throw Malformed(problem);
}

inline uint64_t big_endian(const uint8_t* at, size_t count) {
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

}  // namespace djinn_wire
