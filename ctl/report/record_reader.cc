// SPDX-License-Identifier: Apache-2.0
#include "ctl/report/record_reader.h"

#include <algorithm>
#include <boost/json/monotonic_resource.hpp>
#include <boost/json/value.hpp>
#include <chrono>
#include <cmath>

#include "common/json.h"
#include "common/parsed_number.h"
#include "common/text.h"
#include "common/utf8.h"
#include "common/wall_time.h"

namespace ddprun::report {

namespace json = boost::json;
using json_at::at, json_at::list;

namespace {

// A larger number isn't a reading, and sums of such numbers would overflow.
constexpr double kMostNumber = 1e30;
constexpr double kMostCount = 9'007'199'254'740'992;  // 2^53

// Cuts a number of `count` digits, and the character after it, from the beginning of `text`.
// Returns the number.
std::optional<int> next_digits(std::string_view& text, std::size_t count, char behind) {
  if (text.size() <= count || text[count] != behind) return std::nullopt;
  const auto value = parsed_number<int>(text.substr(0, count));
  if (!value || *value < 0) return std::nullopt;
  text.remove_prefix(count + 1);
  return value;
}

// A reading has held since the one before, if that is at most so many seconds ago: else one was
// lost.
constexpr double kNodeInterval = 20;
constexpr double kProgressInterval = 1800;  // comes only after a change: steps may be long

constexpr std::int64_t kMostRanks = 1'000'000;
constexpr std::size_t kMostHosts = 100'000;

void put(TimeGrid& grid, const std::string& row, double begin, double at,
         std::optional<double> value) {
  if (!value || *value < 0) return;
  if (const auto number = grid.row(row)) grid.add(*number, begin, at, *value);
}

constexpr std::size_t kMostRounds = 10'000, kMostNodes = 100'000, kMostFailures = 1000,
                      kMostJobs = 1000, kMostNames = 16, kMostRankHosts = 100'000,
                      kMostFrameworks = 4, kMostFrameworkBytes = 256;
constexpr double kLongestJob = 400 * 86'400.0;  // events with a time further off are wrong
constexpr int kMostDepth = 16;

json::value parsed(std::string_view text, json::monotonic_resource& memory) {
  boost::system::error_code error;
  return parsed_json(text, error, kMostDepth, &memory);
}

PhaseSeconds phases_of(const json::value& seconds) {
  PhaseSeconds phases{};
  for (std::size_t phase = 0; phase < kNumPhases; ++phase) {
    phases[phase] = std::max(number_at(seconds, kPhaseKeys[phase]).value_or(0), 0.0);
  }
  return phases;
}

void later(std::optional<double>& at, double time) { at = std::max(at.value_or(time), time); }

}  // namespace

std::string clean_text(std::string_view text, std::size_t most_bytes) {
  std::string clean;
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    const std::string_view letter = text.substr(0, length);
    const std::string shown = length == 0 ? std::string(kReplacementCharacter) : one_line(letter);
    if (clean.size() + shown.size() > most_bytes) return clean + "…";
    clean += shown;
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return clean;
}

std::optional<double> number_at(const json::value& object, std::string_view name) {
  const std::optional<double> number = json_at::number(object, name);
  return number && std::abs(*number) <= kMostNumber ? number : std::nullopt;
}

std::optional<std::int64_t> count_at(const json::value& object, std::string_view name) {
  const std::optional<double> number = number_at(object, name);
  if (!number || *number < 0 || *number > kMostCount || *number != std::floor(*number)) return {};
  return static_cast<std::int64_t>(*number);
}

std::string text_at(const json::value& object, std::string_view name, std::size_t most_bytes) {
  const json::string* text = at(object, name).if_string();
  return text == nullptr ? "" : clean_text(*text, most_bytes);
}

std::vector<std::string> texts_at(const json::value& object, std::string_view name,
                                  std::size_t most) {
  std::vector<std::string> texts;
  for (const json::value& each : list(object, name)) {
    if (texts.size() == most) break;
    if (each.is_string()) texts.push_back(clean_text(each.get_string()));
  }
  return texts;
}

std::optional<double> parse_utc(std::string_view text) {
  const auto year = next_digits(text, 4, '-'), month = next_digits(text, 2, '-');
  const auto day = next_digits(text, 2, 'T'), hour = next_digits(text, 2, ':');
  const auto minute = next_digits(text, 2, ':');
  if (!year || !month || !day || !hour || !minute || !text.ends_with('Z')) return std::nullopt;
  text.remove_suffix(1);
  const std::optional<double> second = parse_decimal(text);
  const std::chrono::year_month_day date{std::chrono::year(*year),
                                         std::chrono::month(static_cast<unsigned>(*month)),
                                         std::chrono::day(static_cast<unsigned>(*day))};
  if (!date.ok() || *hour > 23 || *minute > 59 || !second || *second > 60) return std::nullopt;
  const auto days = std::chrono::sys_days(date).time_since_epoch().count();
  return static_cast<double>(days) * 86'400 + *hour * 3600 + *minute * 60 + *second;
}

struct RecordReader::Event {
  const json::value& keys;
  std::string name = {}, host = {};
  double at = 0;
  std::int64_t round = 0;
  std::optional<std::int64_t> node_rank = {};
};

void RecordReader::progress(const Event& event) {
  for (const json::value& each : list(event.keys, "ranks")) rank(each, event.at, event.round);
}

void RecordReader::rank(const json::value& entry, double at, std::int64_t round) {
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
  const auto of_round = record_.rounds.find(round);
  const std::string framework = text_at(entry, "framework", kMostFrameworkBytes);
  if (of_round != record_.rounds.end()) {
    RoundFacts& facts = of_round->second;
    if (!framework.empty() && facts.frameworks.size() < kMostFrameworks) {
      facts.frameworks.insert(framework);
    }
    facts.steps_skipped =
        std::max(facts.steps_skipped, count_at(entry, "skipped_steps").value_or(0));
  }
  if (const auto peak = number_at(entry, "gpu_memory_peak_bytes"); peak && *peak >= 0) {
    put_in(readings_.gpu_peak, rank.gpu_peak, *peak);
  }
  if (const auto loss = number_at(entry, "loss")) {
    put_in(readings_.loss, rank.loss, *loss);
    rank.has_loss = true;
  } else if (rank.has_loss && (!readings_.no_loss || at < readings_.no_loss->at)) {
    readings_.no_loss = NoLoss{.rank = *number, .step = count_at(entry, "step"), .at = at};
  }
  const auto step = number_at(entry, "step_seconds");
  if (step && *step >= 0) {
    put_in(readings_.step, rank.step, *step);
    // Communication that isn't hidden is mostly waiting for other ranks.
    if (const auto exposed = number_at(entry, "exposed_seconds")) {
      put_in(readings_.own, rank.own, std::max(*step - *exposed, 0.0));
    }
    if (const auto loader = number_at(entry, "loader_seconds"); loader && *loader >= 0) {
      put_in(readings_.loader, rank.loader, *loader);
    }
  }
  // Samples are counted anew in each round.
  const auto samples = number_at(entry, "samples");
  if (samples && rank.samples && goes_on && *samples >= *rank.samples && at > rank.at) {
    put_in(readings_.samples, rank.sample_rate, (*samples - *rank.samples) / (at - rank.at));
  }
  rank.samples = samples ? samples : goes_on ? rank.samples : std::nullopt;
  rank.round = round;
  rank.at = at;
}

void RecordReader::node(const Event& event) {
  const json::value& keys = event.keys;
  const std::string& host = event.host;
  const double at = event.at;
  if (hosts_.size() >= kMostHosts && !hosts_.contains(host)) return;
  const auto known = hosts_.find(host);
  const bool goes_on =
      known != hosts_.end() && at >= known->second && at - known->second <= kNodeInterval;
  const double begin = goes_on ? known->second : at;
  hosts_[host] = at;
  put(readings_.cpu, host, begin, at, number_at(keys, "cpu"));
  put(readings_.memory, host, begin, at, number_at(keys, "memory_used_bytes"));
  put(readings_.received, host, begin, at, number_at(keys, "received_bytes_per_second"));
  put(readings_.sent, host, begin, at, number_at(keys, "sent_bytes_per_second"));
  put(readings_.retransmits, host, begin, at, number_at(keys, "tcp_retransmits_per_second"));
  gpus(event, begin);
}

void RecordReader::gpus(const Event& event, double begin) {
  for (const json::value& gpu : list(event.keys, "gpus")) {
    const auto number = count_at(gpu, "gpu");
    if (!number || *number > 255) continue;
    const std::string name = event.host + " GPU " + std::to_string(*number);
    put(readings_.gpu_use, name, begin, event.at, number_at(gpu, "use"));
    put(readings_.gpu_memory, name, begin, event.at, number_at(gpu, "memory_used_bytes"));
    put(readings_.gpu_watts, name, begin, event.at, number_at(gpu, "watts"));
    put(readings_.gpu_celsius, name, begin, event.at, number_at(gpu, "celsius"));
  }
}

RecordReader::RecordReader(Record& record) : record_(record), readings_(record.readings) {}

void RecordReader::file(Source source) {
  record_.sources.push_back(std::move(source));
  source_ = &record_.sources.back();
}

std::optional<EventKeys> RecordReader::event_keys(std::string_view text) {
  json::monotonic_resource memory;
  const json::value value = parsed(text, memory);
  const auto time = parse_utc(text_at(value, "time"));
  std::string job = text_at(value, "job");
  if (text_at(value, "event").empty() || job.empty() || !time) return std::nullopt;
  return EventKeys{.job = std::move(job), .time = *time};
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
  const std::string job = text_at(value, "job");
  Event event{.keys = value,
              .name = text_at(value, "event", 32),
              .host = text_at(value, "host", 256),
              .round = count_at(value, "round").value_or(0),
              .node_rank = count_at(value, "node_rank")};
  if (event.name.empty() || job.empty()) return unreadable("no event of ddprun");
  if (job != record_.job) {
    ++source_->others;
    if (record_.other_jobs.size() < kMostJobs || record_.other_jobs.contains(job)) {
      ++record_.other_jobs[job];
    }
    return;
  }
  const auto time = parse_utc(text_at(value, "time", 40));
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
  if (event.name == "progress") return progress(event);
  if (event.name == "node") return node(event);
  if (event.name == "begin") return begin(event);
  if (event.name == "round") return round(event);
  if (event.name == "spawn") return spawn(event);
  if (event.name == "exit") return exit(event);
  if (event.name == "restart") return restart(event);
  if (event.name == "verdict") return verdict(event);
  // Other events come from a newer ddprun, and nothing here depends on them.
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
  node->second.num_workers += count_at(event.keys, "num_workers").value_or(0);
}

void RecordReader::round(const Event& event) {
  RoundFacts* round = round_of(event);
  if (round == nullptr) return;
  round->num_nodes = count_at(event.keys, "num_nodes").value_or(0);
  round->world_size = count_at(event.keys, "world_size").value_or(0);
  round->in_place = at(event.keys, "in_place") == json::value(true);
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
  const json::value& sums = at(event.keys, "ledger");
  if (sums.is_object()) ledger(sums);
  // All nodes have the same verdict, except one that was cut off and decided alone, which is rare.
  const bool is_better =
      !record_.verdict || sums.is_object() || (!record_.ledger && event.at > record_.verdict->at);
  if (!is_better) return;
  record_.verdict = {.state = text_at(event.keys, "state", 64),
                     .reason = text_at(event.keys, "reason", 4096),
                     .first_failure = text_at(event.keys, "first_failure", 4096),
                     .exit_code = count_at(event.keys, "exit_code"),
                     .rounds = count_at(event.keys, "rounds").value_or(0),
                     .at = event.at};
}

void RecordReader::ledger(const json::value& ledger) {
  record_.ledger =
      LedgerSums{.ettr = number_at(ledger, "ettr"), .seconds = phases_of(at(ledger, "seconds"))};
  for (const json::value& keys : list(ledger, "rounds")) {
    const Event named{.keys = keys, .round = count_at(keys, "round").value_or(0)};
    RoundFacts* round = round_of(named);
    if (round == nullptr) continue;
    if (round->num_nodes == 0) round->num_nodes = count_at(keys, "nodes").value_or(0);
    if (round->world_size == 0) round->world_size = count_at(keys, "world_size").value_or(0);
    round->in_place = at(keys, "in_place") == json::value(true);
    round->went = texts_at(keys, "went", kMostNames);
    round->stragglers = texts_at(keys, "stragglers", kMostNames);
    if (const std::string cause = text_at(keys, "cause"); !cause.empty()) round->cause = cause;
    round->first_failure = text_at(keys, "first_failure");
    round->num_warm = count_at(keys, "num_warm").value_or(0);
    round->cold = text_at(keys, "cold");
    round->first_step = count_at(keys, "first_step").value_or(0);
    round->last_step = count_at(keys, "last_step").value_or(0);
    round->steps_redone = count_at(keys, "steps_redone").value_or(0);
    if (const json::value& seconds = at(keys, "seconds"); seconds.is_object()) {
      round->seconds = phases_of(seconds);
    }
  }
}

}  // namespace ddprun::report
