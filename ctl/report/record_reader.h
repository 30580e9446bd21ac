// SPDX-License-Identifier: Apache-2.0
// Lines of `ddprun --events` into a Record. Pure.
#pragma once

#include <boost/json/fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "ctl/report/reading_lines.h"
#include "ctl/report/record.h"

namespace ddprun::report {

// One event, read. `time` in seconds since 1970.
struct EventKeys {
  std::string job;
  double time = 0;
};

class RecordReader {
 public:
  // `record` has its job and origin, and outlives this.
  explicit RecordReader(Record& record);

  // The file of the lines that follow. It is in `record` from now on.
  void file(Source source);
  // One line. What is no event is counted, and described once, in the file's Source.
  void line(std::string_view text);

  // The job and time of that line's event. nullopt: it is none.
  static std::optional<EventKeys> event_keys(std::string_view text);

 private:
  struct Event;

  void unreadable(const char* why);
  void take(const Event& event);
  // A round whose end nobody tells lasted until the last reading of it.
  void heard(const Event& event);
  void begin(const Event& event);
  void round(const Event& event);
  void spawn(const Event& event);
  void exit(const Event& event);
  void restart(const Event& event);
  void verdict(const Event& event);
  void ledger(const boost::json::object& ledger);
  RoundFacts* round_of(const Event& event);

  Record& record_;
  ReadingLines readings_;
  Source* source_ = nullptr;
};

}  // namespace ddprun::report
