// SPDX-License-Identifier: Apache-2.0
// Lines of `ddprun --events` into a Record. Pure.
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

// Valid UTF-8 on one line. Bytes that are none become U+FFFD. Controls, and what would turn or hide
// the text around it, are as one_line() has them. Cut behind `most_bytes`, with "…".
std::string clean_text(std::string_view text, std::size_t most_bytes = 1024);

// As json_at.h has them, but that texts come back clean, and numbers within bounds.
std::optional<double> number_at(const boost::json::value& object, std::string_view name);
// 0 … 2^53; nullopt also where it is less, more or no whole number.
std::optional<std::int64_t> count_at(const boost::json::value& object, std::string_view name);
std::string text_at(const boost::json::value& object, std::string_view name,
                    std::size_t most_bytes = 1024);
std::vector<std::string> texts_at(const boost::json::value& object, std::string_view name,
                                  std::size_t most);

// "2026-11-26T03:15:07.123Z" in seconds since 1970. nullopt: it is no such text.
std::optional<double> parse_utc(std::string_view text);

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
  // Takes one line. A line that is no event is counted, and described once, in the file's Source.
  void line(std::string_view text);

  // The job and time of that line's event. nullopt: it is none.
  static std::optional<EventKeys> event_keys(std::string_view text);

 private:
  struct Event;
  struct Rank {
    std::int64_t round = -1;
    double at = 0;  // of the last line
    std::optional<double> samples;
    bool has_loss = false;                                              // in this round
    std::optional<std::size_t> loss, sample_rate, step, own, gpu_peak;  // rows
  };

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
  void ledger(const boost::json::value& ledger);
  // Readings, into the record's grids.
  void progress(const Event& event);
  void rank(const boost::json::value& entry, double at, std::int64_t round);
  void node(const Event& event);
  void gpus(const Event& event, double begin);
  RoundFacts* round_of(const Event& event);

  Record& record_;
  Readings& readings_;
  Source* source_ = nullptr;
  std::unordered_map<std::int64_t, Rank> ranks_;
  std::unordered_map<std::string, double> hosts_;  // when each was read last
};

}  // namespace ddprun::report
