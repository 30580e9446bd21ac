// SPDX-License-Identifier: Apache-2.0
#include "ctl/report/facts.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/value.hpp>
#include <chrono>
#include <numeric>

#include "common/json.h"
#include "common/text.h"
#include "common/wall_time.h"
#include "ctl/number_texts.h"

namespace ddprun::report {

namespace json = boost::json;
using ctl::clock_text, ctl::count_text, ctl::whole_text;

namespace {

constexpr std::size_t kRendezvous = phase_index("rendezvous"), kSpawn = phase_index("spawn"),
                      kRunning = phase_index("running");

constexpr double kStandsOut = 1.1;  // times the median
constexpr std::size_t kMostSlow = 10, kMostHostsNamed = 4;

std::string utc_of(double seconds) {
  using Seconds = std::chrono::duration<double>;
  return utc_text(WallTime(std::chrono::duration_cast<WallTime::duration>(Seconds(seconds))));
}

// Estimates the phases from events. They don't separate the first step and repeated steps from
// training.
PhaseSeconds phases_by_events(const RoundFacts& round) {
  PhaseSeconds seconds{};
  const double began = round.began.value_or(0), ran = round.ran.value_or(began);
  seconds[kRendezvous] = round.waited_seconds;
  seconds[kSpawn] = std::max(ran - began, 0.0);
  seconds[kRunning] = std::max(round.ended.value_or(ran) - ran, 0.0);
  return seconds;
}

void put_rounds(const Record& record, Facts& facts) {
  double end = 0;  // of the previous round
  for (const auto& [number, round] : record.rounds) {
    RoundSpan span{.facts = &round, .seconds = round.seconds.value_or(phases_by_events(round))};
    span.begin = round.began ? std::max(*round.began - span.seconds[kRendezvous], 0.0) : end;
    end = span.begin + span.length();
    facts.rounds.push_back(span);
  }
  facts.tells_steps = record.readings.has_progress;
  facts.has_ledger = record.ledger.has_value();
  if (record.ledger) {
    facts.ettr = record.ledger->ettr;
    facts.phases = record.ledger->seconds;
    return;
  }
  for (const RoundSpan& span : facts.rounds) {
    for (std::size_t phase = 0; phase < kNumPhases; ++phase) {
      facts.phases[phase] += span.seconds[phase];
    }
  }
}

void put_verdict(const Record& record, Facts& facts) {
  facts.is_over = record.verdict || record.end_report;
  if (record.verdict) {
    const Verdict& verdict = *record.verdict;
    facts.state = verdict.state;
    facts.reason = verdict.reason;
    facts.first_failure = verdict.first_failure;
    facts.exit_code = verdict.exit_code;
  }
  if (record.end_report) {
    const EndReport& report = *record.end_report;
    if (facts.state.empty()) facts.state = report.state;
    if (facts.reason.empty()) facts.reason = report.reason;
    if (!facts.exit_code) facts.exit_code = report.exit_code;
  }
  // Without a verdict, the first failure is the last known fact.
  if (facts.first_failure.empty() && !record.failures.empty() && !facts.is_over) {
    const WorkerExit& first = record.failures.front();
    facts.first_failure = concat(
        "rank ", first.global_rank, " (", first.host, ", pid ", first.pid, ") ended: ",
        first.signal.empty() ? concat("exit code ", first.exit_code.value_or(-1)) : first.signal);
  }
  facts.succeeded = facts.is_over && facts.exit_code == 0;
}

void put_job(const Record& record, Facts& facts) {
  facts.program = record.program;
  if (record.origin > 0) facts.began = utc_of(record.origin);
  facts.seconds = record.last_word;
  if (record.verdict && record.origin > 0) facts.ended = utc_of(record.origin + record.verdict->at);
  if (record.end_report) {
    const EndReport& report = *record.end_report;
    if (facts.program.empty()) facts.program = report.program;
    if (facts.began.empty()) facts.began = report.began;
    if (facts.ended.empty()) facts.ended = report.ended;
    if (record.sources.empty() || record.last_word == 0) facts.seconds = report.seconds.value_or(0);
  }
  facts.num_rounds = static_cast<std::int64_t>(record.rounds.size());
  if (!record.rounds.empty()) facts.num_rounds = record.rounds.rbegin()->first;
  if (record.verdict) facts.num_rounds = std::max(facts.num_rounds, record.verdict->rounds);
  if (record.end_report) facts.num_rounds = std::max(facts.num_rounds, record.end_report->rounds);
  for (const auto& [number, round] : record.rounds) {
    facts.num_nodes = round.num_nodes;
    facts.world_size = round.world_size;
    if (!round.frameworks.empty()) facts.framework = listed(round.frameworks, "; ");
  }
}

// Ranks are compared by their own time if they report it: the whole step includes waiting for the
// slowest.
void put_slow_ranks(const Record& record, Facts& facts) {
  const Readings& readings = record.readings;
  const TimeGrid& grid = readings.own.empty() ? readings.step : readings.own;
  if (grid.rows().size() < 2) return;
  std::vector<double> means;
  for (const TimeGrid::Row& row : grid.rows()) means.push_back(row.mean());
  const auto middle = means.begin() + static_cast<std::ptrdiff_t>((means.size() - 1) / 2);
  std::nth_element(means.begin(), middle, means.end());
  for (const TimeGrid::Row& row : grid.rows()) {
    if (*middle <= 0 || row.mean() < kStandsOut * *middle) continue;
    const auto host = record.hosts_of_ranks.find(row.name);
    facts.slow_ranks.push_back({.rank = row.name,
                                .host = host == record.hosts_of_ranks.end() ? "" : host->second,
                                .seconds = row.mean(),
                                .factor = row.mean() / *middle});
  }
  std::stable_sort(facts.slow_ranks.begin(), facts.slow_ranks.end(),
                   [](const SlowRank& a, const SlowRank& b) { return a.seconds > b.seconds; });
  if (facts.slow_ranks.size() > kMostSlow) facts.slow_ranks.resize(kMostSlow);
}

std::string some_of(const std::vector<std::string>& names) {
  if (names.size() <= kMostHostsNamed + 1) return listed(names);
  const std::size_t rest = names.size() - kMostHostsNamed;
  return concat(listed(std::span(names).first(kMostHostsNamed)), " and ",
                whole_text(static_cast<std::int64_t>(rest)), " more");
}

void put_missing_nodes(const Record& record, Facts& facts) {
  std::vector<std::string> silent;
  for (const auto& [host, node] : record.nodes) {
    if (!node.has_verdict) silent.push_back(host);
  }
  if (record.verdict && !silent.empty()) {
    facts.missing.push_back(
        concat("no verdict of ", some_of(silent), ": ",
               silent.size() == 1 ? "that node was" : "these nodes were",
               " lost, its ddprun was killed, or its file was copied before the end"));
  }
  if (record.rounds.empty()) return;
  const RoundFacts& last = record.rounds.rbegin()->second;
  const auto told = static_cast<std::int64_t>(last.nodes.size());
  if (told < last.num_nodes) {
    facts.missing.push_back(concat("the events of ", whole_text(last.num_nodes - told), " of the ",
                                   count_text(last.num_nodes, "node"), " of round ", last.round));
  }
}

void put_missing(const Record& record, Facts& facts) {
  const Readings& readings = record.readings;
  const auto miss = [&](bool is_missing, const char* what) {
    if (is_missing) facts.missing.emplace_back(what);
  };
  if (record.nodes.empty()) {
    facts.missing.emplace_back("all events (ddprun --events): only --report tells of this job");
    return;
  }
  miss(!facts.is_over, "the verdict: ddprun was killed, its node was lost, or the job runs still");
  put_missing_nodes(record, facts);
  miss(!facts.has_ledger,
       "the rendezvous' ledger, which is in the verdict of node rank 0; events tell where the time "
       "went, and count the first step and steps done again as training");
  if (const auto& none = readings.no_loss) {
    facts.missing.push_back(concat("losses from ", clock_text(none->at), " on: that of rank ",
                                   none->rank, " is no number",
                                   none->step ? concat(" at step ", whole_text(*none->step)) : "",
                                   " (NaN, infinity, or beyond all bounds)"));
  }
  miss(readings.has_progress && readings.step.empty() && readings.loss.empty(),
       "losses and step times: workers told how far they were, and nothing more (docs/ddp.md)");
  miss(!readings.has_progress,
       "progress: no worker wrote its progress page (docs/agent-socket.md), so no loss, throughput "
       "and step times");
  miss(
      !readings.step.empty() && readings.own.empty(),
      "each rank's own share of its step (step_parts, docs/ddp.md): a slow rank makes the steps of "
      "all longer, and can't be told from the others");
  miss(readings.cpu.empty() && readings.received.empty(), "readings of the machines");
  miss(readings.gpu_use.empty() && readings.gpu_memory.empty(), "GPUs: no node has told of any");
  miss(!record.train, "accuracy: there is no summary of train --json");
  if (record.lost > 0) {
    facts.missing.push_back(count_text(record.lost, "event") + " that a full disk has cost");
  }
  std::int64_t unreadable = 0;
  for (const Source& source : record.sources) unreadable += source.unreadable;
  if (unreadable > 0) {
    facts.missing.push_back(
        concat(count_text(unreadable, "line"), " that can't be read (see Sources)"));
  }
}

json::value text_or_null(const std::string& text) {
  return text.empty() ? json::value(nullptr) : json::value(text);
}

json::array texts(const std::vector<std::string>& all) {
  return json::array(all.begin(), all.end());
}

json::object seconds_of(const PhaseSeconds& seconds) {
  json::object object;
  for (std::size_t phase = 0; phase < kNumPhases; ++phase) {
    object[kPhaseKeys[phase]] = seconds[phase];
  }
  return object;
}

json::object counts_of(const std::map<std::string, std::int64_t>& counts) {
  json::object object;
  for (const auto& [name, count] : counts) object[name] = count;
  return object;
}

json::object round_of(const RoundSpan& span) {
  const RoundFacts& round = *span.facts;
  return {{"round", round.round},
          {"begin_seconds", span.begin},
          {"seconds", seconds_of(span.seconds)},
          {"is_ledger", round.seconds.has_value()},
          {"nodes", round.num_nodes},
          {"world_size", round.world_size},
          {"in_place", round.in_place},
          {"num_warm", round.num_warm},
          {"cold", text_or_null(round.cold)},
          {"cause", text_or_null(round.cause)},
          {"first_failure", text_or_null(round.first_failure)},
          {"first_step", round.first_step},
          {"last_step", round.last_step},
          {"steps_redone", round.steps_redone},
          {"steps_skipped", round.steps_skipped},
          {"exits", counts_of(round.exits)}};
}

// Returns each row's statistics over the whole time.
json::object rows_of(const TimeGrid& grid) {
  json::object object;
  for (const TimeGrid::Row& row : grid.rows()) {
    object[row.name] = json::object{{"mean", row.mean()},
                                    {"least", row.least},
                                    {"most", row.most},
                                    {"most_at_seconds", row.most_at}};
  }
  return object;
}

json::value training_of(const Record& record) {
  if (!record.train) return nullptr;
  json::array epochs;
  for (const Epoch& epoch : record.train->epochs) {
    epochs.push_back(json::object{{"epoch", epoch.epoch},
                                  {"train_loss", or_null(epoch.train_loss)},
                                  {"test_loss", or_null(epoch.test_loss)},
                                  {"test_accuracy", or_null(epoch.test_accuracy)},
                                  {"samples_per_second", or_null(epoch.samples_per_second)}});
  }
  return epochs;
}

}  // namespace

double RoundSpan::length() const { return std::accumulate(seconds.begin(), seconds.end(), 0.0); }

std::string state_text(const std::string& state) {
  std::string text = state;
  std::replace(text.begin(), text.end(), '_', ' ');
  return text;
}

Facts facts_of(const Record& record) {
  Facts facts;
  put_verdict(record, facts);
  put_job(record, facts);
  put_rounds(record, facts);
  put_slow_ranks(record, facts);
  put_missing(record, facts);
  return facts;
}

std::string facts_json(const Record& record, const Facts& facts) {
  json::object all{{"version", 1},
                   {"job", record.job},
                   {"is_over", facts.is_over},
                   {"state", text_or_null(facts.state)},
                   {"exit_code", or_null(facts.exit_code)},
                   {"reason", text_or_null(facts.reason)},
                   {"first_failure", text_or_null(facts.first_failure)},
                   {"program", text_or_null(facts.program)},
                   {"framework", text_or_null(facts.framework)},
                   {"began_at", text_or_null(facts.began)},
                   {"ended_at", text_or_null(facts.ended)},
                   {"seconds", facts.seconds},
                   {"nodes", facts.num_nodes},
                   {"world_size", facts.world_size},
                   {"rounds", facts.num_rounds},
                   {"ettr", or_null(facts.ettr)},
                   {"is_ledger", facts.has_ledger},
                   {"time", seconds_of(facts.phases)},
                   {"exits", counts_of(record.exits)},
                   {"missing", texts(facts.missing)}};
  json::array rounds;
  for (const RoundSpan& span : facts.rounds) rounds.push_back(round_of(span));
  all["by_round"] = std::move(rounds);
  json::array slow;
  for (const SlowRank& rank : facts.slow_ranks) {
    slow.push_back(json::object{{"rank", rank.rank},
                                {"host", rank.host},
                                {"seconds", rank.seconds},
                                {"factor", rank.factor}});
  }
  all["stragglers"] = std::move(slow);
  all["epochs"] = training_of(record);
  const Readings& readings = record.readings;
  all["ranks"] = json::object{{"loss", rows_of(readings.loss)},
                              {"samples_per_second", rows_of(readings.samples)},
                              {"step_seconds", rows_of(readings.step)},
                              {"own_seconds", rows_of(readings.own)},
                              {"loader_seconds", rows_of(readings.loader)},
                              {"gpu_memory_peak_bytes", rows_of(readings.gpu_peak)}};
  all["machines"] = json::object{{"cpu", rows_of(readings.cpu)},
                                 {"memory_used_bytes", rows_of(readings.memory)},
                                 {"received_bytes_per_second", rows_of(readings.received)},
                                 {"sent_bytes_per_second", rows_of(readings.sent)},
                                 {"tcp_retransmits_per_second", rows_of(readings.retransmits)}};
  all["gpus"] = json::object{{"use", rows_of(readings.gpu_use)},
                             {"memory_used_bytes", rows_of(readings.gpu_memory)},
                             {"watts", rows_of(readings.gpu_watts)},
                             {"celsius", rows_of(readings.gpu_celsius)}};
  json::array sources;
  for (const Source& source : record.sources) {
    sources.push_back(json::object{{"file", source.path},
                                   {"what", source.what},
                                   {"lines", source.lines},
                                   {"unreadable", source.unreadable},
                                   {"first_problem", text_or_null(source.first_problem)}});
  }
  all["sources"] = std::move(sources);
  all["passed_over"] = texts(record.passed_over);
  return written_json(all) + "\n";
}

}  // namespace ddprun::report
