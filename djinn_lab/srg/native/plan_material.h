// What the key of a program is made of: djinn_lab/srg/plan_key.py says what it is.
#pragma once

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

  // No client can choose ids that meet in one place.
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
    output_.byte(0x98);
    input_.literal("\x8a\xa5metas");
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
    input_.literal("\xa8settings");
    same();
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

}  // namespace djinn_wire
