// Reading and writing MessagePack, bounded by the end of the input. Nothing recurses.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string_view>
#include <utility>

namespace djinn_wire {

struct Malformed : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Apart from what is expected, which stays small enough to be inlined.
[[noreturn, gnu::cold, gnu::noinline]] inline void refuse(const char* problem) { throw Malformed(problem); }

inline void expect(bool right, const char* problem) {
  if (!right) [[unlikely]] refuse(problem);
}

// For what is called for each number. Inlined into one function, places in input and output stay in
// registers; a call, and any byte stored by what is no local variable, would send them through memory.
#define DJINN_INLINE [[gnu::always_inline]] inline

// Of a known width, compilers make one load or store of it.
template <int width>
uint64_t big_endian(const uint8_t* at) {
  uint64_t value = 0;
  for (int index = 0; index < width; ++index) value = value << 8 | at[index];
  return value;
}

template <int width>
void store_big_endian(uint8_t* to, uint64_t value) {
  for (int index = 0; index < width; ++index) {
    to[index] = static_cast<uint8_t>(value >> 8 * (width - 1 - index));
  }
}

class Output {
 public:
  explicit Output(size_t expected)
      : begin_(new uint8_t[expected]), at_(begin_.get()), end_(at_ + expected) {}

  // What lies up to ``to``. Most is shorter than 16 bytes: a copy of a known size is no call.
  DJINN_INLINE void raw(const uint8_t* from, const uint8_t* to, const uint8_t* end) {
    const size_t count = static_cast<size_t>(to - from);
    if (count <= 16 && end - from >= 16) {
      std::memcpy(room(16), from, 16);
    } else {
      std::memcpy(room(count), from, count);
    }
    at_ += count;
  }

  DJINN_INLINE void byte(uint8_t value) {
    *room(1) = value;
    ++at_;
  }

  DJINN_INLINE void unsigned_number(uint64_t value) {
    if (value < 0x80) {
      byte(static_cast<uint8_t>(value));
    } else if (value <= UINT8_MAX) {
      tagged<1>(0xcc, value);
    } else if (value <= UINT16_MAX) {
      tagged<2>(0xcd, value);
    } else if (value <= UINT32_MAX) {
      tagged<4>(0xce, value);
    } else {
      tagged<8>(0xcf, value);
    }
  }

  DJINN_INLINE void number(int64_t value) {
    if (value >= 0) {
      unsigned_number(static_cast<uint64_t>(value));
    } else if (value >= -32) {
      byte(static_cast<uint8_t>(value));
    } else if (value >= INT8_MIN) {
      tagged<1>(0xd0, static_cast<uint64_t>(value));
    } else if (value >= INT16_MIN) {
      tagged<2>(0xd1, static_cast<uint64_t>(value));
    } else if (value >= INT32_MIN) {
      tagged<4>(0xd2, static_cast<uint64_t>(value));
    } else {
      tagged<8>(0xd3, static_cast<uint64_t>(value));
    }
  }

  DJINN_INLINE void binary(std::string_view content) {
    const size_t count = content.size();
    if (count <= UINT8_MAX) {
      tagged<1>(0xc4, count);
    } else if (count <= UINT16_MAX) {
      tagged<2>(0xc5, count);
    } else {
      tagged<4>(0xc6, count);
    }
    const auto* from = reinterpret_cast<const uint8_t*>(content.data());
    raw(from, from + count, from + count);
  }

  DJINN_INLINE void array(uint64_t count) {
    if (count < 16) {
      byte(static_cast<uint8_t>(0x90 | count));
    } else if (count <= UINT16_MAX) {
      tagged<2>(0xdc, count);
    } else {
      tagged<4>(0xdd, count);
    }
  }

  DJINN_INLINE std::string_view bytes() const {
    return {reinterpret_cast<const char*>(begin_.get()), static_cast<size_t>(at_ - begin_.get())};
  }

 private:
  template <int width>
  DJINN_INLINE void tagged(uint8_t tag, uint64_t value) {
    uint8_t* to = room(1 + width);
    to[0] = tag;
    store_big_endian<width>(to + 1, value);
    at_ = to + 1 + width;
  }

  // Where as many bytes may be written.
  DJINN_INLINE uint8_t* room(size_t count) {
    if (static_cast<size_t>(end_ - at_) < count) [[unlikely]] {
      const size_t written = bytes().size(), size = 2 * written + count;
      begin_.reset(enlarged(bytes(), size));
      at_ = begin_.get() + written;
      end_ = begin_.get() + size;
    }
    return at_;
  }

  [[gnu::cold, gnu::noinline]] static uint8_t* enlarged(std::string_view bytes, size_t size) {
    auto* larger = new uint8_t[size];
    std::memcpy(larger, bytes.data(), bytes.size());
    return larger;
  }

  std::unique_ptr<uint8_t[]> begin_;
  uint8_t* at_;
  uint8_t* end_;
};

class Input {
 public:
  explicit Input(std::string_view data)
      : at_(reinterpret_cast<const uint8_t*>(data.data())), end_(at_ + data.size()) {}

  const uint8_t* at() const { return at_; }
  const uint8_t* end() const { return end_; }
  size_t left() const { return static_cast<size_t>(end_ - at_); }

  DJINN_INLINE void literal(std::string_view expected) {
    const uint8_t* found = take(expected.size());
    expect(std::memcmp(found, expected.data(), expected.size()) == 0, "another field was expected");
  }

  DJINN_INLINE bool nil() {
    if (peek() != 0xc0) return false;
    ++at_;
    return true;
  }

  DJINN_INLINE bool boolean() {
    const uint8_t tag = *take(1);
    expect((tag & 0xfe) == 0xc2, "a truth value was expected");
    return tag == 0xc3;
  }

  // Only the shortest form of each number, as encoders write it: then rewriting loses nothing.
  DJINN_INLINE int64_t number() {
    const uint8_t tag = *take(1);
    if (tag < 0x80) return tag;
    if (tag >= 0xe0) return static_cast<int8_t>(tag);
    switch (tag) {
      case 0xcc: return shortest_unsigned<1>(0x80);
      case 0xcd: return shortest_unsigned<2>(uint64_t{1} << 8);
      case 0xce: return shortest_unsigned<4>(uint64_t{1} << 16);
      case 0xcf: return shortest_unsigned<8>(uint64_t{1} << 32);
      case 0xd0: return shortest_negative<1, int8_t>(-32);
      case 0xd1: return shortest_negative<2, int16_t>(INT8_MIN);
      case 0xd2: return shortest_negative<4, int32_t>(INT16_MIN);
      case 0xd3: return shortest_negative<8, int64_t>(INT32_MIN);
      default: refuse("an integer was expected");
    }
  }

  DJINN_INLINE uint64_t array() {
    const uint8_t tag = *take(1);
    uint64_t count = tag & 15;
    if (tag == 0xdc) {
      count = big_endian<2>(take(2));
      expect(count >= 16, "an array is not in its shortest form");
    } else if (tag == 0xdd) {
      count = big_endian<4>(take(4));
      expect(count > UINT16_MAX, "an array is not in its shortest form");
    } else {
      expect((tag & 0xf0) == 0x90, "an array was expected");
    }
    expect(count <= left(), "an array is longer than the bytes that are left");
    return count;
  }

  DJINN_INLINE void array_of(uint64_t count) {
    expect(array() == count, "a record has too many or too few fields");
  }

  DJINN_INLINE std::string_view binary() {
    switch (*take(1)) {
      case 0xc4: return chars(big_endian<1>(take(1)));
      case 0xc5: return chars(big_endian<2>(take(2)));
      case 0xc6: return chars(big_endian<4>(take(4)));
      default: refuse("bytes were expected");
    }
  }

  DJINN_INLINE std::string_view text() {
    const uint8_t tag = *take(1);
    if ((tag & 0xe0) == 0xa0) return chars(tag & 31);
    switch (tag) {
      case 0xd9: return chars(big_endian<1>(take(1)));
      case 0xda: return chars(big_endian<2>(take(2)));
      case 0xdb: return chars(big_endian<4>(take(4)));
      default: refuse("a text was expected");
    }
  }

  // A scalar of a node: a truth value, an integer, a float or a complex number.
  DJINN_INLINE void scalar() {
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
  DJINN_INLINE void skip() {
    expect(at_ < end_, "the bytes end too early");
    if (fills_a_byte(*at_)) {
      ++at_;
    } else {
      at_ = Input(at_, end_).skip_nested();
    }
  }

  // An array with all that it contains.
  DJINN_INLINE void skip_array() {
    for (uint64_t left = array(); left > 0; --left) skip();
  }

 private:
  Input(const uint8_t* at, const uint8_t* end) : at_(at), end_(end) {}

  template <int width>
  DJINN_INLINE int64_t shortest_unsigned(uint64_t least) {
    const uint64_t value = big_endian<width>(take(width));
    expect(value >= least && value <= INT64_MAX, "an integer is too large or not in its shortest form");
    return static_cast<int64_t>(value);
  }

  template <int width, class Signed>
  DJINN_INLINE int64_t shortest_negative(int64_t above) {
    const auto value = static_cast<Signed>(big_endian<width>(take(width)));
    expect(value < above, "an integer is not in its shortest form");
    return value;
  }

  DJINN_INLINE std::string_view chars(size_t count) {
    return {reinterpret_cast<const char*>(take(count)), count};
  }

  DJINN_INLINE uint8_t peek() const {
    expect(at_ < end_, "the bytes end too early");
    return *at_;
  }

  DJINN_INLINE const uint8_t* take(size_t count) {
    expect(count <= left(), "the bytes end too early");
    const uint8_t* taken = at_;
    at_ += count;
    return taken;
  }

  [[gnu::noinline]] const uint8_t* skip_nested() {
    for (uint64_t pending = 1; pending > 0; --pending) {
      expect(pending <= left(), "the bytes end too early");
      pending += skip_one();
    }
    return at_;
  }

  static bool fills_a_byte(uint8_t tag) {
    return tag < 0x80 || tag >= 0xe0 || tag == 0x90 || (tag >= 0xc0 && tag <= 0xc3 && tag != 0xc1);
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
      case 0xc4: case 0xd9: return take(big_endian<1>(take(1))), 0;
      case 0xc5: case 0xda: return take(big_endian<2>(take(2))), 0;
      case 0xc6: case 0xdb: return take(big_endian<4>(take(4))), 0;
      case 0xcc: case 0xd0: return take(1), 0;
      case 0xcd: case 0xd1: return take(2), 0;
      case 0xca: case 0xce: case 0xd2: return take(4), 0;
      case 0xcb: case 0xcf: case 0xd3: return take(8), 0;
      case 0xdc: return big_endian<2>(take(2));
      case 0xdd: return big_endian<4>(take(4));
      case 0xde: return 2 * big_endian<2>(take(2));
      case 0xdf: return 2 * big_endian<4>(take(4));
      default: refuse("a value is of no kind that programs have");
    }
  }

  const uint8_t* at_;
  const uint8_t* end_;
};

}  // namespace djinn_wire
