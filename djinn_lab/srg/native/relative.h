// The relative form of programs and back: djinn_lab/srg/relative.py says what it is.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "messagepack.h"

namespace djinn_wire {

constexpr int64_t kNumberMax = int64_t{1} << 62;

inline uint64_t zigzag(int64_t difference) {
  return (static_cast<uint64_t>(difference) << 1) ^ static_cast<uint64_t>(difference >> 63);
}

inline int64_t difference_of(uint64_t zigzag) {
  return static_cast<int64_t>(zigzag >> 1) ^ -static_cast<int64_t>(zigzag & 1);
}

struct Origin {
  int64_t highest, floor, call;
};

inline int64_t in_range(int64_t value) {
  expect(value >= 0 && value < kNumberMax, "a number is out of range");
  return value;
}

// The two directions. Each gets what was read and returns what is to be written.
class ToRelative {
 public:
  explicit ToRelative(Origin origin) : at(origin) {}

  DJINN_INLINE int64_t id(int64_t value) const {
    in_range(value);
    return value >= at.floor ? negative(at.highest - value) : value;
  }

  DJINN_INLINE int64_t defined(int64_t value) {
    const int64_t number = id(value);
    at.highest = std::max(at.highest, value);
    return number;
  }

  DJINN_INLINE int64_t scope_call(int64_t call) {
    if (in_range(call) == 0) return 0;
    const int64_t before = at.call;
    at.call = call;
    return negative(call - before);
  }

  DJINN_INLINE int64_t node_scope(int64_t scope) {
    in_range(scope);
    const int64_t before = scope_;
    scope_ = scope;
    return static_cast<int64_t>(zigzag(scope - before));
  }

  DJINN_INLINE std::string_view random_state(std::string_view found, const std::string_view* last) const {
    expect(!found.empty(), "an empty random state");
    return last != nullptr && found == *last ? std::string_view() : found;
  }

  Origin at;

 private:
  DJINN_INLINE static int64_t negative(int64_t difference) {
    return -1 - static_cast<int64_t>(zigzag(difference));
  }

  int64_t scope_ = 0;
};

class ToWhole {
 public:
  explicit ToWhole(Origin origin) : at(origin) {}

  DJINN_INLINE int64_t id(int64_t number) const {
    return in_range(number < 0 ? at.highest - of_negative(number) : number);
  }

  DJINN_INLINE int64_t defined(int64_t number) {
    const int64_t value = id(number);
    at.highest = std::max(at.highest, value);
    return value;
  }

  DJINN_INLINE int64_t scope_call(int64_t number) {
    expect(number <= 0, "a number is out of range");
    if (number == 0) return 0;
    return at.call = in_range(at.call + of_negative(number));
  }

  DJINN_INLINE int64_t node_scope(int64_t number) {
    expect(number >= 0, "a number is out of range");
    return scope_ = in_range(scope_ + difference_of(static_cast<uint64_t>(number)));
  }

  DJINN_INLINE std::string_view random_state(std::string_view found, const std::string_view* last) const {
    expect(!found.empty() || last != nullptr, "no random state came back yet");
    return found.empty() ? *last : found;
  }

  Origin at;

 private:
  DJINN_INLINE static int64_t of_negative(int64_t number) {
    return difference_of(static_cast<uint64_t>(-1 - number));
  }

  int64_t scope_ = 0;
};

template <class Direction>
class Rewriting {
 public:
  Rewriting(std::string_view data, Origin origin, const std::string_view* state)
      : input_(data),
        copied_(input_.at()),
        output_(data.size() + data.size() / 4 + 16),
        to_(origin),
        state_(state) {}

  DJINN_INLINE void run() {
    input_.literal("\x8a\xa5metas");
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
    input_.literal("\xa8settings");
    input_.skip();
    expect(input_.left() == 0, "bytes follow the program");
    copy();
  }

  std::string_view bytes() const { return output_.bytes(); }
  Origin next() const { return {to_.at.highest, next_floor_, to_.at.call}; }

 private:
  // What was read since the last copy goes over as it is.
  DJINN_INLINE void copy() { output_.raw(copied_, input_.at(), input_.end()); }

  template <class Change>
  DJINN_INLINE void change(Change changed) {
    copy();
    output_.number(changed(input_.number()));
    copied_ = input_.at();
  }

  template <bool defines>
  DJINN_INLINE void id() {
    change([this](int64_t number) [[gnu::always_inline]] {
      return defines ? to_.defined(number) : to_.id(number);
    });
  }

  template <bool defines>
  DJINN_INLINE void ids() {
    for (uint64_t left = input_.array(); left > 0; --left) {
      if (!input_.nil()) id<defines>();
    }
  }

  DJINN_INLINE void scope() {
    input_.array_of(5);
    input_.skip();
    change([this](int64_t number) [[gnu::always_inline]] { return to_.scope_call(number); });
    for (int field = 2; field < 5; ++field) input_.skip();
  }

  DJINN_INLINE void source() {
    input_.array_of(6);
    id<true>();
    id<true>();
    for (int field = 2; field < 6; ++field) input_.skip();
  }

  DJINN_INLINE void node() {
    input_.array_of(8);
    input_.skip();
    ids<false>();
    ids<true>();
    input_.skip_array();
    ids<true>();
    change([this](int64_t number) [[gnu::always_inline]] { return to_.node_scope(number); });
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

}  // namespace djinn_wire
