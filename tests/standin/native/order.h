// Which launch is ordered after which, whatever the times happen to be: a vector clock.
//
// Every stream of the process has a number and counts its launches. Knowledge of a stream up to a count is passed on
// by events and by the host's waits.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace standin {

// A launch, as one that touched a block.
struct Access {
  int stream = -1;  // the number of the stream; -1: none
  uint64_t at = 0;
};

class Knowledge {
 public:
  // Whether the launch is ordered before whatever has this knowledge.
  bool includes(const Access& access) const {
    if (access.stream < 0) return true;
    return access.stream < static_cast<int>(known_.size()) && known_[access.stream] >= access.at;
  }

  void learn(const Knowledge& other) {
    if (known_.size() < other.known_.size()) known_.resize(other.known_.size());
    for (size_t i = 0; i < other.known_.size(); ++i) known_[i] = std::max(known_[i], other.known_[i]);
  }

  uint64_t latest(int stream) const { return stream < static_cast<int>(known_.size()) ? known_[stream] : 0; }

  // Counts a launch on the stream and returns it.
  Access count_launch(int stream) {
    if (static_cast<int>(known_.size()) <= stream) known_.resize(stream + 1);
    return {stream, ++known_[stream]};
  }

 private:
  std::vector<uint64_t> known_;  // by the number of the stream
};

}  // namespace standin
