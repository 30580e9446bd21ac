// SPDX-License-Identifier: Apache-2.0
// Events that are readings, `progress` and `node`, into a record's grids. Pure.
#pragma once

#include <boost/json/object.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>

#include "ctl/report/record.h"

namespace ddprun::report {

class ReadingLines {
 public:
  // `readings` outlives this.
  explicit ReadingLines(Readings& readings) : readings_(readings) {}

  void progress(const boost::json::object& event, double at, std::int64_t round);
  void node(const boost::json::object& event, double at, const std::string& host);

 private:
  struct Rank {
    std::int64_t round = -1;
    double at = 0;  // of the last line
    std::optional<double> samples;
    bool has_loss = false;                                    // in this round
    std::optional<std::size_t> loss, sample_rate, step, own;  // rows
  };

  void rank(const boost::json::object& entry, double at, std::int64_t round);
  void gpus(const boost::json::object& event, double begin, double at, const std::string& host);

  Readings& readings_;
  std::unordered_map<std::int64_t, Rank> ranks_;
  std::unordered_map<std::string, double> hosts_;  // when each was read last
};

}  // namespace ddprun::report
