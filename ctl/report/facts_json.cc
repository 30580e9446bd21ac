// SPDX-License-Identifier: Apache-2.0
#include "ctl/report/facts_json.h"

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>

namespace ddprun::report {

namespace json = boost::json;

namespace {

json::value text_or_null(const std::string& text) {
  return text.empty() ? json::value(nullptr) : json::value(text);
}

template <typename Number>
json::value or_null(const std::optional<Number>& number) {
  return number ? json::value(*number) : json::value(nullptr);
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
          {"cause", text_or_null(round.cause)},
          {"first_failure", text_or_null(round.first_failure)},
          {"first_step", round.first_step},
          {"last_step", round.last_step},
          {"steps_redone", round.steps_redone},
          {"exits", counts_of(round.exits)}};
}

// By row: how it was over all.
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

std::string facts_json(const Record& record, const Facts& facts) {
  json::object all{{"version", 1},
                   {"job", record.job},
                   {"is_over", facts.is_over},
                   {"state", text_or_null(facts.state)},
                   {"exit_code", or_null(facts.exit_code)},
                   {"reason", text_or_null(facts.reason)},
                   {"first_failure", text_or_null(facts.first_failure)},
                   {"program", text_or_null(facts.program)},
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
                              {"own_seconds", rows_of(readings.own)}};
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
  return json::serialize(all) + "\n";
}

}  // namespace ddprun::report
