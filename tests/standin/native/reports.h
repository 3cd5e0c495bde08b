// What a test asks for afterwards: races, and the log of races and faults.
#pragma once

#include <unistd.h>

#include <cstdio>
#include <mutex>
#include <string>
#include <vector>

#include "settings.h"

namespace standin {

inline std::mutex report_lock;
inline std::vector<std::string> races;
constexpr size_t MAX_RACES = 1000;

inline void append_to_log(const std::string& line) {
  if (settings.log.empty()) return;
  if (std::FILE* file = std::fopen(settings.log.c_str(), "a")) {
    std::fprintf(file, "%d %s\n", static_cast<int>(::getpid()), line.c_str());
    std::fclose(file);
  }
}

inline void report_race(const std::string& what) {
  const std::lock_guard<std::mutex> held(report_lock);
  append_to_log("race: " + what);
  if (races.size() < MAX_RACES) races.push_back(what);
}

}  // namespace standin
