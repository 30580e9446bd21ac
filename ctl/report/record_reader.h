// SPDX-License-Identifier: Apache-2.0
// Puts the lines of `ddprun --events` into a Record. Pure.
#pragma once

#include <boost/json/fwd.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "ctl/report/record.h"

namespace ddprun::report {

// Returns valid UTF-8 on one line. Invalid bytes become U+FFFD. Control characters, and those that
// turn or hide text, are written as one_line() writes them. Longer text is cut after `most_bytes`,
// with "…".
std::string clean_text(std::string_view text, std::size_t most_bytes = 1024);

// As json_at's in json.h, but texts come back clean, and numbers within bounds.
std::optional<double> number_at(const boost::json::value& object, std::string_view name);
// Returns a whole number of 0 … 2^53; nullopt: it isn't one.
std::optional<std::int64_t> count_at(const boost::json::value& object, std::string_view name);
std::string text_at(const boost::json::value& object, std::string_view name,
                    std::size_t most_bytes = 1024);
std::vector<std::string> texts_at(const boost::json::value& object, std::string_view name,
                                  std::size_t most);

// "2026-11-26T03:15:07.123Z" → seconds since 1970. nullopt: the text isn't a time.
std::optional<double> parse_utc(std::string_view text);

// The job and time of an event. `time` is in seconds since 1970.
struct EventKeys {
  std::string job;
  double time = 0;
};

class RecordReader {
 public:
  // `record` has its job and origin set, and must outlive this object.
  explicit RecordReader(Record& record);

  // Begins a file: the next lines are from it. Adds `source` to the record.
  void file(Source source);
  // Reads one line. Lines that are no events are counted in the file's Source, which also describes
  // the first one.
  void line(std::string_view text);

  // Reads the job and time of the event on a line. nullopt: the line is no event.
  static std::optional<EventKeys> event_keys(std::string_view text);

 private:
  struct Event;
  struct Rank {
    std::int64_t round = -1;
    double at = 0;  // when the last line came
    std::optional<double> samples;
    bool has_loss = false;  // it had one in this round
    std::optional<std::size_t> loss, sample_rate, step, own, loader, gpu_peak;  // rows
  };

  void unreadable(const char* why);
  void take(const Event& event);
  // A round whose end no event tells ends with its last reading.
  void heard(const Event& event);
  void begin(const Event& event);
  void round(const Event& event);
  void spawn(const Event& event);
  void exit(const Event& event);
  void restart(const Event& event);
  void verdict(const Event& event);
  void ledger(const boost::json::value& ledger);
  // Readings go into the record's grids.
  void progress(const Event& event);
  void rank(const boost::json::value& entry, double at, std::int64_t round);
  void node(const Event& event);
  void gpus(const Event& event, double begin);
  RoundFacts* round_of(const Event& event);

  Record& record_;
  Readings& readings_;
  Source* source_ = nullptr;
  std::unordered_map<std::int64_t, Rank> ranks_;
  std::unordered_map<std::string, double> hosts_;  // when each was last read
};

}  // namespace ddprun::report
