// SPDX-License-Identifier: Apache-2.0
#include "ctl/report/reading_lines.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/value.hpp>

#include "ctl/report/fields.h"

namespace ddprun::report {

namespace json = boost::json;

namespace {

// A reading says how it was since the one before, unless that is longer ago: then one was lost.
constexpr double kNodeInterval = 20;
constexpr double kProgressInterval = 1800;  // said only when something changed: steps may be long

constexpr std::int64_t kMostRanks = 1'000'000;
constexpr std::size_t kMostHosts = 100'000;

void put(TimeGrid& grid, const std::string& row, double begin, double at,
         std::optional<double> value) {
  if (!value || *value < 0) return;
  if (const auto number = grid.row(row)) grid.add(*number, begin, at, *value);
}

}  // namespace

void ReadingLines::progress(const json::object& event, double at, std::int64_t round) {
  const json::array* ranks = array_at(event, "ranks");
  if (ranks == nullptr) return;
  for (const json::value& each : *ranks) {
    if (each.is_object()) rank(each.get_object(), at, round);
  }
}

void ReadingLines::rank(const json::object& entry, double at, std::int64_t round) {
  const auto number = count_at(entry, "rank");
  if (!number || *number >= kMostRanks) return;
  const bool is_new = !ranks_.contains(*number);
  Rank& rank = ranks_[*number];
  const bool goes_on = !is_new && rank.round == round && at >= rank.at;
  const double begin = goes_on ? std::max(rank.at, at - kProgressInterval) : at;
  const auto put_in = [&](TimeGrid& grid, std::optional<std::size_t>& row, double value) {
    if (!row) row = grid.row(std::to_string(*number));
    if (row) grid.add(*row, begin, at, value);
  };
  readings_.has_progress = true;
  if (!goes_on) rank.has_loss = false;
  if (const auto loss = number_at(entry, "loss")) {
    put_in(readings_.loss, rank.loss, *loss);
    rank.has_loss = true;
  } else if (rank.has_loss && (!readings_.no_loss || at < readings_.no_loss->at)) {
    readings_.no_loss = NoLoss{.rank = *number, .step = count_at(entry, "step"), .at = at};
  }
  const auto step = number_at(entry, "step_seconds");
  if (step && *step >= 0) {
    put_in(readings_.step, rank.step, *step);
    // Communication that is not hidden is mostly waiting for others.
    if (const auto exposed = number_at(entry, "exposed_seconds")) {
      put_in(readings_.own, rank.own, std::max(*step - *exposed, 0.0));
    }
  }
  // Counted anew in each round.
  const auto samples = number_at(entry, "samples");
  if (samples && rank.samples && goes_on && *samples >= *rank.samples && at > rank.at) {
    put_in(readings_.samples, rank.sample_rate, (*samples - *rank.samples) / (at - rank.at));
  }
  rank.samples = samples ? samples : goes_on ? rank.samples : std::nullopt;
  rank.round = round;
  rank.at = at;
}

void ReadingLines::node(const json::object& event, double at, const std::string& host) {
  if (hosts_.size() >= kMostHosts && !hosts_.contains(host)) return;
  const auto known = hosts_.find(host);
  const bool goes_on =
      known != hosts_.end() && at >= known->second && at - known->second <= kNodeInterval;
  const double begin = goes_on ? known->second : at;
  hosts_[host] = at;
  put(readings_.cpu, host, begin, at, number_at(event, "cpu"));
  put(readings_.memory, host, begin, at, number_at(event, "memory_used_bytes"));
  put(readings_.received, host, begin, at, number_at(event, "received_bytes_per_second"));
  put(readings_.sent, host, begin, at, number_at(event, "sent_bytes_per_second"));
  put(readings_.retransmits, host, begin, at, number_at(event, "tcp_retransmits_per_second"));
  if (const auto bytes = number_at(event, "memory_bytes")) readings_.memory_bytes[host] = *bytes;
  gpus(event, begin, at, host);
}

void ReadingLines::gpus(const json::object& event, double begin, double at,
                        const std::string& host) {
  const json::array* gpus = array_at(event, "gpus");
  if (gpus == nullptr) return;
  for (const json::value& each : *gpus) {
    if (!each.is_object()) continue;
    const json::object& gpu = each.get_object();
    const auto number = count_at(gpu, "gpu");
    if (!number || *number > 255) continue;
    const std::string name = host + " GPU " + std::to_string(*number);
    put(readings_.gpu_use, name, begin, at, number_at(gpu, "use"));
    put(readings_.gpu_memory, name, begin, at, number_at(gpu, "memory_used_bytes"));
    put(readings_.gpu_watts, name, begin, at, number_at(gpu, "watts"));
    put(readings_.gpu_celsius, name, begin, at, number_at(gpu, "celsius"));
    readings_.gpu_memory_bytes =
        std::max(readings_.gpu_memory_bytes, number_at(gpu, "memory_bytes").value_or(0));
  }
}

}  // namespace ddprun::report
