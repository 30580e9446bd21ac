// SPDX-License-Identifier: Apache-2.0
#include "ctl/report/side_files.h"

#include <boost/json/array.hpp>
#include <boost/json/value.hpp>

#include "ctl/report/fields.h"
#include "ctl/report/numbers.h"

namespace ddprun::report {

namespace json = boost::json;

namespace {

constexpr std::size_t kMostEpochs = 10'000, kMostOutputLines = 20;

using NamedTexts = std::vector<std::pair<std::string, std::string>>;

void add_text(NamedTexts& facts, const char* name, const std::string& text) {
  if (!text.empty()) facts.emplace_back(name, text);
}

void add_count(NamedTexts& facts, const char* name, std::optional<std::int64_t> count) {
  if (count) facts.emplace_back(name, whole_text(*count));
}

NamedTexts failure_facts(const json::object& failure) {
  NamedTexts facts;
  add_text(facts, "host", text_at(failure, "host"));
  add_count(facts, "rank", count_at(failure, "global_rank"));
  add_count(facts, "node rank", count_at(failure, "node_rank"));
  if (const auto pid = count_at(failure, "pid")) facts.emplace_back("pid", std::to_string(*pid));
  add_count(facts, "exit code", count_at(failure, "exit_code"));
  add_text(facts, "signal", text_at(failure, "signal_name"));
  add_text(facts, "memory", text_at(failure, "out_of_memory"));
  add_text(facts, "operation", text_at(failure, "operation"));
  add_text(facts, "note", text_at(failure, "note", 4096));
  add_text(facts, "ended at", text_at(failure, "ended_at"));
  return facts;
}

}  // namespace

std::optional<EndReport> end_report_of(const json::object& object) {
  const json::object* job = object_at(object, "job");
  if (job == nullptr || !object.contains("written_by") || !object.contains("state")) return {};
  EndReport report{.job = text_at(*job, "id"),
                   .state = text_at(object, "state", 64),
                   .reason = text_at(object, "reason", 4096),
                   .program = text_at(*job, "program"),
                   .began = text_at(object, "began_at", 40),
                   .ended = text_at(object, "ended_at", 40),
                   .exit_code = count_at(object, "exit_code"),
                   .seconds = number_at(object, "seconds"),
                   .rounds = count_at(object, "rounds").value_or(0),
                   .victims = texts_at(object, "victims", kMostOutputLines),
                   .excluded = texts_at(object, "excluded", kMostOutputLines)};
  if (report.job.empty()) return std::nullopt;
  if (const json::object* failure = object_at(object, "first_failure")) {
    report.failure = failure_facts(*failure);
    report.last_lines = texts_at(*failure, "last_lines", kMostOutputLines);
    if (report.last_lines.empty())
      report.last_lines = texts_at(*failure, "stack", kMostOutputLines);
  }
  return report;
}

std::optional<TrainSummary> train_summary_of(const json::object& object) {
  const json::array* epochs = array_at(object, "epochs");
  if (epochs == nullptr || !object.contains("world_size")) return std::nullopt;
  TrainSummary summary;
  for (const json::value& each : *epochs) {
    if (!each.is_object() || summary.epochs.size() == kMostEpochs) continue;
    const json::object& keys = each.get_object();
    summary.epochs.push_back({.epoch = count_at(keys, "epoch").value_or(0),
                              .train_loss = number_at(keys, "train_loss"),
                              .test_loss = number_at(keys, "test_loss"),
                              .test_accuracy = number_at(keys, "test_accuracy"),
                              .samples_per_second = number_at(keys, "samples_per_second")});
  }
  add_text(summary.facts, "backend", text_at(object, "backend"));
  add_text(summary.facts, "device", text_at(object, "device"));
  add_text(summary.facts, "data", text_at(object, "data"));
  add_text(summary.facts, "mode", text_at(object, "mode"));
  add_text(summary.facts, "compression", text_at(object, "compress"));
  add_count(summary.facts, "first step", count_at(object, "first_step"));
  add_count(summary.facts, "last step", count_at(object, "last_step"));
  if (const auto accuracy = number_at(object, "test_accuracy");
      accuracy && !summary.epochs.empty()) {
    summary.facts.emplace_back("test accuracy", percent_text(*accuracy));
  }
  return summary;
}

}  // namespace ddprun::report
