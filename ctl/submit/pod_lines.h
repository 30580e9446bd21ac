// SPDX-License-Identifier: Apache-2.0
// Lines of pods as `kubectl logs --prefix --timestamps` has them, each of them once, however often
// kubectl is started anew. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace ddprun::submit {

class PodLines {
 public:
  // Whole lines that are new, without their times.
  std::string take(std::string_view text);
  // kubectl has ended: the last line, where its end was missing. What is taken from now on may
  // begin with what was taken before.
  std::string end();

 private:
  struct Mark {
    std::int64_t latest = 0;  // ns since 1970
    int num_then = 0;         // lines of that very time
  };
  // What is new of a line without its end, with one; empty: nothing.
  std::string new_of(std::string_view line);

  std::string held_;
  std::map<std::string, Mark> before_, now_;  // by pod: as it was when kubectl began, and as it is
  std::map<std::string, int> again_;          // lines of the mark of before that are back
};

// "2027-01-15T08:00:09.123456789Z", also with an offset → ns since 1970; -1: it is none.
std::int64_t log_time_of(std::string_view text);

}  // namespace ddprun::submit
