// What the key of a program is made of, and whether the rest is plainly right: djinn_lab/srg/plan_key.py says
// what both are.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "messagepack.h"
#include "relative.h"

namespace djinn_wire {

// Numbers ids in the order in which they are met.
class Numbering {
 public:
  // ``bytes``: of the program; an id takes several.
  explicit Numbering(size_t bytes)
      : slots_(std::clamp(std::bit_floor(bytes / 8), size_t{64}, size_t{4096})), seed_(process_seed()) {}

  DJINN_INLINE uint64_t of(int64_t id) {
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

  // No client can choose ids that meet in one place.
  static uint64_t process_seed() {
    static const uint64_t seed = [] {
      std::random_device device;
      return static_cast<uint64_t>(device()) << 32 | device();
    }();
    return seed;
  }

  DJINN_INLINE Slot* find(int64_t id) {
    uint64_t hash = static_cast<uint64_t>(id) + seed_;
    hash = (hash ^ hash >> 30) * 0xbf58476d1ce4e5b9;
    hash = (hash ^ hash >> 27) * 0x94d049bb133111eb;
    hash ^= hash >> 31;
    const size_t mask = slots_.size() - 1;
    size_t place = hash & mask;
    while (slots_[place].number != 0 && slots_[place].id != id) place = (place + 1) & mask;
    return &slots_[place];
  }

  [[gnu::noinline]] void grow() {
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

// What msgspec decodes and djinn_lab/srg/validation.py allows without a doubt: False is no refusal, only a
// reason to let these look.
class Plain {
 public:
  static constexpr size_t kTextBytesMax = 1024, kStateBytesMax = 8192;

  // Reads a scope.
  [[gnu::noinline]] static bool scope(Input& input) try {
    input.array_of(5);
    const bool module = text(input.text()), call = input.number() >= 0;
    const bool cell = text(input.text()), line = input.number() >= 0;
    return module && call && cell && line && is_phase(input.text());
  } catch (const Malformed&) {
    return false;
  }

  // Reads the name of a blob into ``names``.
  [[gnu::noinline]] static bool blob(Input& input, std::vector<std::string_view>& names) try {
    names.push_back(input.text());
    return is_hexadecimal(names.back(), 64) ||
           (names.back().starts_with("fresh-") && is_hexadecimal(names.back().substr(6), 32));
  } catch (const Malformed&) {
    return false;
  }

 private:
  static bool text(std::string_view text) {
    unsigned char all = 0;
    for (const char one : text) all |= static_cast<unsigned char>(one);
    return all < 0x80 && text.size() <= kTextBytesMax;
  }

  static bool is_phase(std::string_view text) {
    return text == "forward" || text == "decode" || text == "prefill" || text == "backward" ||
           text == "optimizer" || text == "other";
  }

  static bool is_hexadecimal(std::string_view text, size_t count) {
    return text.size() == count && std::all_of(text.begin(), text.end(), [](char one) {
      return (one >= '0' && one <= '9') || (one >= 'a' && one <= 'f');
    });
  }
};

// The numbering and the names lie elsewhere: thus the compiler keeps the rest in registers.
class PlanMaterial {
 public:
  // ``blobs``: for the names that sources have.
  PlanMaterial(std::string_view data, Numbering& numbering, std::vector<std::string_view>& blobs)
      : input_(data), output_(data.size() + 16), numbering_(numbering), blobs_(blobs) {}

  DJINN_INLINE void run() {
    output_.byte(0x98);
    input_.literal("\x8a\xa5metas");
    same();
    input_.literal("\xa9templates");
    same();
    input_.literal("\xa6scopes");
    scopes();
    input_.literal("\xa7sources");
    uint64_t count = input_.array();
    output_.array(count);
    for (uint64_t left = count; left > 0; --left) source();
    input_.literal("\xa5nodes");
    count = input_.array();
    output_.array(count);
    for (uint64_t left = count; left > 0; --left) node();
    input_.literal("\xa4keep");
    ids();
    input_.literal("\xa5" "fetch");
    ids();
    input_.literal("\xa7release");
    for (uint64_t left = input_.array(); left > 0; --left) input_.number();
    input_.literal("\xa9rng_state");
    if (!input_.nil()) plain_ &= input_.binary().size() <= Plain::kStateBytesMax;
    input_.literal("\xa8settings");
    same();
    expect(input_.left() == 0, "bytes follow the program");
  }

  std::string_view bytes() const { return output_.bytes(); }

  // Whether what the key leaves out is right without a closer look.
  bool plain() const { return plain_; }

 private:
  DJINN_INLINE void same() {
    const uint8_t* from = input_.at();
    input_.skip();
    output_.raw(from, input_.at(), input_.end());
  }

  DJINN_INLINE void same_array() {
    const uint8_t* from = input_.at();
    input_.skip_array();
    output_.raw(from, input_.at(), input_.end());
  }

  DJINN_INLINE void scopes() {
    const uint64_t count = input_.array();
    for (uint64_t left = count; left > 0; --left) {
      read_or_skip([](Input& input) { return Plain::scope(input); });
    }
    output_.unsigned_number(count);
  }

  // Reads what is plainly right, and skips what is not.
  template <class Read>
  DJINN_INLINE void read_or_skip(Read read) {
    Input ahead = input_;
    plain_ = plain_ && read(ahead);
    if (plain_) {
      input_ = ahead;
    } else {
      input_.skip();
    }
  }

  DJINN_INLINE void id() { output_.unsigned_number(numbering_.of(in_range(input_.number()))); }

  DJINN_INLINE void ids() {
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

  DJINN_INLINE void source() {
    input_.array_of(6);
    output_.byte(0x96);
    id();
    id();
    same();  // meta
    same();  // residency
    const bool no_blob = input_.nil();
    if (!no_blob) read_or_skip([this](Input& input) { return Plain::blob(input, blobs_); });
    output_.byte(no_blob ? 0xc3 : 0xc2);
    if (input_.nil()) {
      output_.byte(0xc0);
    } else {
      output_.unsigned_number(input_.binary().size());
    }
  }

  DJINN_INLINE void node() {
    input_.array_of(8);
    output_.byte(0x98);
    same();  // template
    ids();
    ids();
    same_array();  // metas
    ids();
    same();  // scope
    const uint64_t scalars = input_.array();
    for (uint64_t left = scalars; left > 0; --left) input_.scalar();
    output_.unsigned_number(scalars);
    same();  // dynamic
  }

  Input input_;
  Output output_;
  Numbering& numbering_;
  bool plain_ = true;
  std::vector<std::string_view>& blobs_;
};

}  // namespace djinn_wire
