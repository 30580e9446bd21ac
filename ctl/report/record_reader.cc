// SPDX-License-Identifier: Apache-2.0
#include "ctl/report/record_reader.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/monotonic_resource.hpp>
#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/value.hpp>

#include "common/log.h"
#include "ctl/report/fields.h"

namespace ddprun::report {

namespace json = boost::json;

namespace {

constexpr std::size_t kMostRounds = 10'000, kMostNodes = 100'000, kMostFailures = 1000,
                      kMostJobs = 1000, kMostNames = 16, kMostRankHosts = 100'000;
constexpr double kLongestJob = 400 * 86'400.0;  // a clock that is further off is none
constexpr int kMostDepth = 16;

json::value parsed(std::string_view text, json::monotonic_resource& memory) {
  json::parse_options options;
  options.max_depth = kMostDepth;
  boost::system::error_code error;
  json::value value = json::parse(text, error, &memory, options);
  return error ? json::value() : value;
}

PhaseSeconds phases_of(const json::object& seconds) {
  PhaseSeconds phases{};
  for (std::size_t phase = 0; phase < kNumPhases; ++phase) {
    phases[phase] = std::max(number_at(seconds, kPhaseKeys[phase]).value_or(0), 0.0);
  }
  return phases;
}

void later(std::optional<double>& at, double time) { at = std::max(at.value_or(time), time); }

}  // namespace

struct RecordReader::Event {
  const json::object& keys;
  std::string name = {}, host = {};
  double at = 0;
  std::int64_t round = 0;
  std::optional<std::int64_t> node_rank = {};
};

RecordReader::RecordReader(Record& record) : record_(record), readings_(record.readings) {}

void RecordReader::file(Source source) {
  record_.sources.push_back(std::move(source));
  source_ = &record_.sources.back();
}

std::optional<EventKeys> RecordReader::event_keys(std::string_view text) {
  json::monotonic_resource memory;
  const json::value value = parsed(text, memory);
  if (!value.is_object()) return std::nullopt;
  const json::object& keys = value.get_object();
  const auto time = parse_utc(text_at(keys, "time"));
  if (text_at(keys, "event").empty() || text_at(keys, "job").empty() || !time) return std::nullopt;
  return EventKeys{.job = text_at(keys, "job"), .time = *time};
}

void RecordReader::unreadable(const char* why) {
  if (source_->unreadable++ == 0)
    source_->first_problem = concat("line ", source_->lines, ": ", why);
}

void RecordReader::line(std::string_view text) {
  ++source_->lines;
  unsigned char first[16 * 1024];
  json::monotonic_resource memory(first, sizeof first);
  const json::value value = parsed(text, memory);
  if (!value.is_object()) {
    if (text.find_first_not_of(" \r\t") == std::string_view::npos) return;
    return unreadable("no JSON object, as of a line that was cut");
  }
  const json::object& keys = value.get_object();
  const std::string job = text_at(keys, "job");
  Event event{.keys = keys,
              .name = text_at(keys, "event", 32),
              .host = text_at(keys, "host", 256),
              .round = count_at(keys, "round").value_or(0),
              .node_rank = count_at(keys, "node_rank")};
  if (event.name.empty() || job.empty()) return unreadable("no event of ddprun");
  if (job != record_.job) {
    ++source_->others;
    if (record_.other_jobs.size() < kMostJobs || record_.other_jobs.contains(job)) {
      ++record_.other_jobs[job];
    }
    return;
  }
  const auto time = parse_utc(text_at(keys, "time", 40));
  if (!time) return unreadable("its time is none");
  event.at = *time - record_.origin;
  if (event.at < -kLongestJob || event.at > kLongestJob) {
    return unreadable("its time is far from that of other events");
  }
  event.at = std::max(event.at, 0.0);
  take(event);
}

void RecordReader::take(const Event& event) {
  record_.last_word = std::max(record_.last_word, event.at);
  record_.lost += count_at(event.keys, "lost").value_or(0);
  if (record_.nodes.size() < kMostNodes || record_.nodes.contains(event.host)) {
    NodeFacts& node = record_.nodes[event.host];
    if (event.node_rank) node.node_rank = event.node_rank;
    node.last_word = std::max(node.last_word, event.at);
  }
  if (event.name == "progress" || event.name == "node") heard(event);
  if (event.name == "progress") return readings_.progress(event.keys, event.at, event.round);
  if (event.name == "node") return readings_.node(event.keys, event.at, event.host);
  if (event.name == "begin") return begin(event);
  if (event.name == "round") return round(event);
  if (event.name == "spawn") return spawn(event);
  if (event.name == "exit") return exit(event);
  if (event.name == "restart") return restart(event);
  if (event.name == "verdict") return verdict(event);
  // Another event is one of a newer ddprun: nothing that is known here depends on it.
}

RoundFacts* RecordReader::round_of(const Event& event) {
  if (event.round == 0) return nullptr;
  if (record_.rounds.size() >= kMostRounds && !record_.rounds.contains(event.round)) return nullptr;
  RoundFacts& round = record_.rounds[event.round];
  round.round = event.round;
  return &round;
}

void RecordReader::heard(const Event& event) {
  const auto found = record_.rounds.find(event.round);
  if (found == record_.rounds.end()) return;
  RoundFacts& round = found->second;
  if (round.exits.empty() && round.cause.empty()) later(round.ended, event.at);
}

void RecordReader::begin(const Event& event) {
  record_.version = text_at(event.keys, "version", 64);
  record_.program = text_at(event.keys, "program");
  record_.min_nodes = count_at(event.keys, "min_nodes").value_or(0);
  record_.max_nodes = count_at(event.keys, "max_nodes").value_or(0);
  record_.max_restarts = count_at(event.keys, "max_restarts").value_or(0);
  const auto node = record_.nodes.find(event.host);
  if (node == record_.nodes.end()) return;
  node->second.has_begin = true;
  node->second.num_workers += count_at(event.keys, "num_workers").value_or(0);
}

void RecordReader::round(const Event& event) {
  RoundFacts* round = round_of(event);
  if (round == nullptr) return;
  round->num_nodes = count_at(event.keys, "num_nodes").value_or(0);
  round->world_size = count_at(event.keys, "world_size").value_or(0);
  round->in_place = flag_at(event.keys, "in_place");
  round->waited_seconds =
      std::max(round->waited_seconds, number_at(event.keys, "waited_seconds").value_or(0));
  round->began = std::min(round->began.value_or(event.at), event.at);
  later(round->ended, event.at);
  if (event.node_rank && round->nodes.size() < kMostNodes) round->nodes.insert(*event.node_rank);
}

void RecordReader::spawn(const Event& event) {
  if (RoundFacts* round = round_of(event)) {
    later(round->ran, event.at);
    later(round->ended, event.at);
  }
  const auto rank = count_at(event.keys, "global_rank");
  if (!rank || record_.hosts_of_ranks.size() >= kMostRankHosts) return;
  record_.hosts_of_ranks[std::to_string(*rank)] = event.host;
}

void RecordReader::exit(const Event& event) {
  const std::string kind = text_at(event.keys, "kind", 32);
  if (record_.exits.size() < kMostNames || record_.exits.contains(kind)) ++record_.exits[kind];
  if (RoundFacts* round = round_of(event)) {
    later(round->ended, event.at);
    if (round->exits.size() < kMostNames || round->exits.contains(kind)) ++round->exits[kind];
  }
  if (kind == "success" || kind == "stopped" || record_.failures.size() >= kMostFailures) return;
  record_.failures.push_back({.round = event.round,
                              .global_rank = count_at(event.keys, "global_rank").value_or(-1),
                              .local_rank = count_at(event.keys, "local_rank").value_or(-1),
                              .pid = count_at(event.keys, "pid").value_or(0),
                              .host = event.host,
                              .kind = kind,
                              .signal = text_at(event.keys, "signal", 32),
                              .exit_code = count_at(event.keys, "exit_code"),
                              .at = event.at});
}

void RecordReader::restart(const Event& event) {
  RoundFacts* round = round_of(event);
  if (round == nullptr) return;
  later(round->ended, event.at);
  if (round->cause.empty()) round->cause = text_at(event.keys, "cause");
}

void RecordReader::verdict(const Event& event) {
  const auto node = record_.nodes.find(event.host);
  if (node != record_.nodes.end()) node->second.has_verdict = true;
  if (RoundFacts* round = round_of(event)) later(round->ended, event.at);
  const json::object* object = object_at(event.keys, "ledger");
  if (object != nullptr) ledger(*object);
  // All nodes have the same, but for one that was cut off and decided alone: that is the rarer.
  const bool is_better =
      !record_.verdict || object != nullptr || (!record_.ledger && event.at > record_.verdict->at);
  if (!is_better) return;
  record_.verdict = {.state = text_at(event.keys, "state", 64),
                     .reason = text_at(event.keys, "reason", 4096),
                     .first_failure = text_at(event.keys, "first_failure", 4096),
                     .exit_code = count_at(event.keys, "exit_code"),
                     .rounds = count_at(event.keys, "rounds").value_or(0),
                     .at = event.at};
}

void RecordReader::ledger(const json::object& ledger) {
  LedgerSums sums{.ettr = number_at(ledger, "ettr")};
  if (const json::object* seconds = object_at(ledger, "seconds"))
    sums.seconds = phases_of(*seconds);
  record_.ledger = sums;
  const json::array* rounds = array_at(ledger, "rounds");
  if (rounds == nullptr) return;
  for (const json::value& each : *rounds) {
    if (!each.is_object()) continue;
    const json::object& keys = each.get_object();
    const Event named{.keys = keys, .round = count_at(keys, "round").value_or(0)};
    RoundFacts* round = round_of(named);
    if (round == nullptr) continue;
    if (round->num_nodes == 0) round->num_nodes = count_at(keys, "nodes").value_or(0);
    if (round->world_size == 0) round->world_size = count_at(keys, "world_size").value_or(0);
    round->in_place = flag_at(keys, "in_place");
    round->came = texts_at(keys, "came", kMostNames);
    round->went = texts_at(keys, "went", kMostNames);
    round->stragglers = texts_at(keys, "stragglers", kMostNames);
    round->victims = texts_at(keys, "victims", kMostNames);
    if (const std::string cause = text_at(keys, "cause"); !cause.empty()) round->cause = cause;
    round->first_failure = text_at(keys, "first_failure");
    round->first_step = count_at(keys, "first_step").value_or(0);
    round->last_step = count_at(keys, "last_step").value_or(0);
    round->steps_redone = count_at(keys, "steps_redone").value_or(0);
    if (const json::object* seconds = object_at(keys, "seconds")) {
      round->seconds = phases_of(*seconds);
    }
  }
}

}  // namespace ddprun::report
