// SPDX-License-Identifier: Apache-2.0
#include "ctl/submit/job_states.h"

#include <algorithm>
#include <array>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <csignal>
#include <iomanip>
#include <sstream>

#include "common/exit_codes.h"
#include "common/json.h"
#include "common/random_id.h"
#include "common/text.h"

namespace ddprun::submit {

namespace json = boost::json;

namespace {

std::string time_text(const std::optional<WallTime>& at) { return at ? utc_text(*at) : ""; }

json::value wall_time_value(const std::optional<WallTime>& at) {
  return at ? json::value(utc_text(*at)) : json::value(nullptr);
}

// Makes "n1, n2, … (7 in all)".
std::string nodes_line(const std::vector<std::string>& nodes, std::size_t most) {
  std::string line;
  for (std::size_t i = 0; i < std::min(nodes.size(), most); ++i) {
    line += (i == 0 ? "" : ",") + one_line(nodes[i]);
  }
  return nodes.size() > most ? concat(line, ",… (", nodes.size(), ")") : line;
}

json::array texts_array(const std::vector<std::string>& texts) {
  return json::array(texts.begin(), texts.end());
}

json::object to_object(const JobState& state) {
  return {{"id", state.id},
          {"name", state.name},
          {"phase", to_string(state.phase)},
          {"exit_code", or_null(state.exit_code)},
          {"nodes", texts_array(state.nodes)},
          {"submitted", wall_time_value(state.submitted)},
          {"began", wall_time_value(state.began)},
          {"ended", wall_time_value(state.ended)},
          {"reason", state.reason}};
}

void print_row(std::ostream& table, const std::vector<std::string>& cells) {
  constexpr int kWidths[] = {28, 20, 10, 5, 21, 21, 16};
  std::ostringstream line;
  line << std::left;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    if (i > 0) line << ' ';
    line << std::setw(i < std::size(kWidths) ? kWidths[i] : 0) << cells[i];
  }
  std::string text = line.str();
  text.erase(text.find_last_not_of(' ') + 1);
  table << text << '\n';
}

std::string ranks_of_row(const RankRow& row) {
  if (row.num_workers == 0) return "spare";
  if (!row.num_workers) {
    return row.first_global_rank ? concat("ranks from ", *row.first_global_rank, " on")
                                 : "ranks by its workers";
  }
  if (!row.first_global_rank) return counted(*row.num_workers, "worker");
  const int last = *row.first_global_rank + *row.num_workers - 1;
  if (*row.num_workers == 1) return concat("rank ", last);
  return concat("ranks ", *row.first_global_rank, "-", last);
}

}  // namespace

const char* to_string(Phase phase) {
  constexpr std::array kNames = {"queued", "running",   "succeeded",
                                 "failed", "cancelled", "unknown"};
  return kNames.at(static_cast<std::size_t>(phase));
}

std::string drawn_suffix() {
  constexpr char kLetters[] = "23456789bcdfghjkmnpqrstvwxz";
  std::array<std::uint8_t, 5> bytes{};
  draw_random(bytes);
  std::string suffix;
  for (const std::uint8_t byte : bytes) suffix += kLetters[byte % (sizeof kLetters - 1)];
  return suffix;
}

JobState state_of_record(const JobRecord& record, const std::optional<RecordedExit>& exit,
                         bool was_cancelled, const std::string& forgotten) {
  JobState state;
  state.id = record.id;
  state.name = record.name;
  state.nodes = record.nodes;
  state.submitted = record.submitted;
  if (exit) {
    state.exit_code = exit->code;
    state.ended = exit->at;
    const Phase if_not = was_cancelled ? Phase::kCancelled : Phase::kFailed;
    state.phase = exit->code == 0 ? Phase::kSucceeded : if_not;
  } else {
    state.phase = was_cancelled ? Phase::kCancelled : Phase::kUnknown;
    state.reason = forgotten;
  }
  return state;
}

int exit_code_of(const JobState& state) {
  if (state.phase == Phase::kSucceeded) return 0;
  if (state.exit_code && *state.exit_code != 0) return *state.exit_code;
  return state.phase == Phase::kCancelled ? exit_status_for_signal(SIGTERM) : 1;
}

const std::vector<std::string>& place_names() {
  static const std::vector<std::string> names = {"slurm", "kubernetes", "ssh", "nodes"};
  return names;
}

std::optional<JobId> parse_job_id(const std::string& text) {
  for (const std::string& place : place_names()) {
    if (text.starts_with(place + ":") && text.size() > place.size() + 1) {
      return JobId{place, text.substr(place.size() + 1)};
    }
  }
  return std::nullopt;
}

std::string states_table(const std::vector<JobState>& states) {
  if (states.empty()) return "no jobs\n";
  std::ostringstream table;
  print_row(table, {"JOB", "NAME", "PHASE", "EXIT", "SUBMITTED", "ENDED", "NODES", "WHY"});
  for (const JobState& state : states) {
    print_row(table,
              {one_line(state.id), one_line(state.name), to_string(state.phase),
               state.exit_code ? std::to_string(*state.exit_code) : "", time_text(state.submitted),
               time_text(state.ended), nodes_line(state.nodes, 2), one_line(state.reason)});
  }
  return table.str();
}

std::string state_text(const JobState& state) {
  std::ostringstream text;
  const auto print = [&](const char* name, const std::string& value) {
    if (!value.empty()) text << std::left << std::setw(11) << name << one_line(value) << '\n';
  };
  print("job", state.id);
  print("name", state.name);
  print("phase", to_string(state.phase));
  print("exit code", state.exit_code ? std::to_string(*state.exit_code) : "");
  print("why", state.reason);
  print("nodes", nodes_line(state.nodes, 64));
  print("submitted", time_text(state.submitted));
  print("began", time_text(state.began));
  print("ended", time_text(state.ended));
  return text.str();
}

std::string states_json(const std::vector<JobState>& states) {
  json::array jobs;
  for (const JobState& state : states) jobs.push_back(to_object(state));
  return written_json(json::object{{"jobs", std::move(jobs)}}) + "\n";
}

std::string state_json(const JobState& state) { return written_json(to_object(state)) + "\n"; }

std::string id_json(const std::string& id) { return written_json(json::object{{"id", id}}) + "\n"; }

std::string plan_text(const Plan& plan) {
  std::ostringstream text;
  text << "# " << plan.how << ":\n" << plan.text << (plan.text.ends_with('\n') ? "" : "\n");
  text << "# ranks:\n";
  for (const RankRow& row : plan.ranks) {
    text << std::left << std::setw(24) << one_line(row.node) << ' ' << ranks_of_row(row) << '\n';
  }
  for (const std::string& note : plan.notes) text << "# " << one_line(note) << '\n';
  return text.str();
}

std::string plan_json(const std::string& place, const Plan& plan) {
  json::array ranks;
  for (const RankRow& row : plan.ranks) {
    ranks.push_back(json::object{{"node", row.node},
                                 {"node_rank", row.node_rank},
                                 {"first_global_rank", or_null(row.first_global_rank)},
                                 {"num_workers", or_null(row.num_workers)}});
  }
  return written_json(json::object{{"to", place},
                                   {"how", plan.how},
                                   {"text", plan.text},
                                   {"ranks", std::move(ranks)},
                                   {"notes", texts_array(plan.notes)}}) +
         "\n";
}

}  // namespace ddprun::submit
