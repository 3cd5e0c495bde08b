// Writes MessagePack as msgspec does: every number in its shortest form.
#pragma once
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace djinn {
class Writer {
 public:
  std::string data;

  void byte(uint8_t value) { data.push_back(char(value)); }
  void nil() { byte(0xC0); }
  void boolean(bool value) { byte(value ? 0xC3 : 0xC2); }
  void integer(int64_t value) {
    if (value >= 0) return natural(uint64_t(value));
    if (value >= -32) byte(uint8_t(value));
    else if (value >= -128) { byte(0xD0); big(uint8_t(value)); }
    else if (value >= -32768) { byte(0xD1); big(uint16_t(value)); }
    else if (value >= -2147483648ll) { byte(0xD2); big(uint32_t(value)); }
    else { byte(0xD3); big(uint64_t(value)); }
  }
  void natural(uint64_t value) {
    if (value < 128) byte(uint8_t(value));
    else if (value < 256) { byte(0xCC); big(uint8_t(value)); }
    else if (value < 65536) { byte(0xCD); big(uint16_t(value)); }
    else if (value < 4294967296ull) { byte(0xCE); big(uint32_t(value)); }
    else { byte(0xCF); big(value); }
  }
  void real(double value) {
    uint64_t bits;
    std::memcpy(&bits, &value, 8);
    byte(0xCB);
    big(bits);
  }
  void text(std::string_view value) { sized(value.size(), 0xA0, 32, 0xD9); data.append(value); }
  void binary(std::string_view value) {
    if (value.size() < 256) { byte(0xC4); big(uint8_t(value.size())); }
    else if (value.size() < 65536) { byte(0xC5); big(uint16_t(value.size())); }
    else { byte(0xC6); big(uint32_t(value.size())); }
    data.append(value);
  }
  void array(size_t count) { counted(count, 0x90, 0xDC); }
  void map(size_t count) { counted(count, 0x80, 0xDE); }
  void raw(std::string_view packed) { data.append(packed); }

 private:
  template <typename T>
  void big(T value) {
    for (int shift = int(sizeof(T)) * 8 - 8; shift >= 0; shift -= 8) data.push_back(char(uint64_t(value) >> shift));
  }
  void sized(size_t count, uint8_t small, size_t limit, uint8_t code) {
    if (count < limit) byte(uint8_t(small | count));
    else if (count < 256) { byte(code); big(uint8_t(count)); }
    else if (count < 65536) { byte(uint8_t(code + 1)); big(uint16_t(count)); }
    else { byte(uint8_t(code + 2)); big(uint32_t(count)); }
  }
  void counted(size_t count, uint8_t small, uint8_t code) {
    if (count < 16) byte(uint8_t(small | count));
    else if (count < 65536) { byte(code); big(uint16_t(count)); }
    else { byte(uint8_t(code + 1)); big(uint32_t(count)); }
  }
};
}  // namespace djinn
