// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <utility>

#include "common/log.h"
#include "ctl/number_texts.h"
#include "ctl/top/picture.h"

namespace ddprun::top {

using ctl::count_text, ctl::number_text, ctl::percent_text, ctl::rate_text, ctl::seconds_text;
using ctl::whole_text;

namespace {

// With " · " between, on as many lines as they need.
void add_facts(Lines& lines, const Lines& facts, std::size_t columns) {
  std::string line;
  for (const std::string& fact : facts) {
    constexpr std::size_t kBetween = 3;
    if (!line.empty() && columns_of(line) + kBetween + columns_of(fact) > columns) {
      lines.push_back(std::exchange(line, ""));
    }
    line += (line.empty() ? "" : concat(kDim, " · ", kPlain)) + fact;
  }
  if (!line.empty()) lines.push_back(line);
}

// "failures 2/3": some of what was granted is gone, or all.
std::string budget(const Job& job, const char* name, const char* used_name, const char* most_name) {
  const std::int64_t used = whole(job.said, used_name), most = whole(job.said, most_name);
  const bool is_over = most > 0 && used >= most;
  return concat(used == 0 ? kPlain
                : is_over ? kBad
                          : kWarn,
                name, ' ', whole_text(used), '/', whole_text(most));
}

Lines figures(const Job& job) {
  const std::int64_t least = whole(job.said, "min_nodes"), most = whole(job.said, "max_nodes");
  std::size_t members = job.num_hidden;
  for (const Node& node : job.nodes) members += node.node_rank ? 1 : 0;
  Lines facts = {
      concat("round ", whole(job.said, "round")),
      concat(members, " of ", least == most ? "" : concat(least, "–"), count_text(most, "node"))};
  const json::array& rounds = list(job.said, "rounds");
  if (text(job.said, "phase") == "running" && !rounds.empty()) {
    facts.push_back(whole_text(whole(rounds.back(), "world_size")) + " ranks");
  }
  if (const auto ettr = number(job.said, "ettr")) facts.push_back("ETTR " + percent_text(*ettr));
  facts.push_back(budget(job, "failures", "failures", "max_restarts"));
  facts.push_back(budget(job, "node losses", "node_losses", "max_node_losses"));
  if (whole(job.said, "preemptions") > 0) {
    facts.push_back(budget(job, "preemptions", "preemptions", "max_preemptions"));
  }
  if (whole(job.said, "rounds_without_progress") > 0) {
    facts.push_back(
        budget(job, "rounds without a step", "rounds_without_progress", "no_progress_restarts"));
  }
  return facts;
}

// "loss        2.31  ▅▄▃▂▂  2.31 to 4.12", where the value is known.
void add_series(Lines& lines, const char* name, const std::optional<double>& now,
                const Series& series, std::size_t columns, std::string (*text)(double),
                const std::string& more = "") {
  constexpr std::size_t kName = 11, kNow = 10, kMostBars = 60, kBehind = 22, kWide = 60;
  if (!now) return;
  const std::size_t used = kName + kNow + (columns >= kWide ? kBehind : 1);
  const std::size_t room = columns > used + 4 ? columns - used : 0;
  const Sparkline spark = sparkline(series.values(), std::min(room, kMostBars));
  std::string line = concat(kDim, left(name, kName), kBold, left(text(*now), kNow));
  if (!spark.bars.empty()) line += concat(kInfo, ' ', spark.bars);
  if (!spark.bars.empty() && columns >= kWide && spark.low < spark.high) {
    line += concat(kDim, ' ', text(spark.low), " to ", text(spark.high));
  }
  if (!more.empty() && columns_of(line) + 2 + columns_of(more) <= columns) {
    line += concat(kPlain, "  ", more);
  }
  lines.push_back(line);
}

std::string loss_text(double loss) { return std::isnan(loss) ? "NaN" : number_text(loss); }

Lines training_lines(const Job& job, const JobHistory& history, std::size_t columns) {
  const json::value& training = member(job.said, "training");
  if (training.is_null()) return {};
  const std::string phase = text(training, "phase");
  Lines lines = {concat(kTitle, "TRAINING", kBold, " step ", whole_text(whole(training, "step")),
                        kPlain, phase.empty() ? "" : concat(" (", phase, ")"))};
  const std::int64_t num_nan = whole(training, "nan_ranks");
  const auto loss = number(training, "loss");
  add_series(lines, "loss", loss || num_nan == 0 ? loss : NAN, history.loss, columns, loss_text);
  if (num_nan > 0) {
    add_wrapped(lines, "the loss is no number on " + count_text(num_nan, "rank"), columns, kBad, 2);
  }
  add_series(lines, "samples/s", number(training, "samples_per_second"), history.samples, columns,
             number_text);
  const json::value& spreads = member(training, "step_parts");
  add_series(lines, "step time", number(member(spreads, "step_seconds"), "mean"), history.step,
             columns, seconds_text);
  Lines parts;
  for (const auto& [name, what] :
       {std::pair{"step_seconds", ""}, std::pair{"exposed_seconds", "communication not hidden "},
        std::pair{"loader_seconds", "waits for data "}}) {
    const json::value& part = member(spreads, name);
    if (part.is_null()) continue;
    const std::string mean = seconds_text(number(part, "mean").value_or(0));
    parts.push_back(concat(what, *what == '\0' ? "worst step " : mean + ", worst ",
                           seconds_text(number(part, "worst").value_or(0)), " (rank ",
                           whole(part, "worst_rank"), ")"));
  }
  add_facts(lines, parts, columns);
  return lines;
}

Lines machine_lines(const Job& job, const JobHistory& history, std::size_t columns) {
  const Machines all = machines_of(job);
  if (!all.is_known) return {};
  Lines lines = {concat(kTitle, "MACHINES")};
  add_series(lines, "GPU mean", all.gpu, history.gpu, columns, percent_text,
             all.num_gpus > 1 ? "least " + percent_text(*all.least_gpu) : "");
  add_series(lines, "CPU mean", all.cpu, history.cpu, columns, percent_text);
  add_series(lines, "network", all.received + all.sent, history.network, columns, rate_text,
             concat("in ", rate_text(all.received), ", out ", rate_text(all.sent)));
  return lines;
}

void add_hang(Lines& lines, const Job& job, std::size_t columns) {
  const json::value& hang = member(job.said, "hang");
  if (hang.is_null() || whole(hang, "round") != whole(job.said, "round")) return;
  constexpr std::size_t kMost = 8;
  add_wrapped(lines, "HANG: " + text(hang, "text"), columns, kBad, 4);
  const std::vector<std::string> ranks = texts(hang, "lines");
  for (std::size_t i = 0; i < std::min(kMost, ranks.size()); ++i) {
    add_wrapped(lines, "  " + ranks[i], columns, kPlain, 2);
  }
  if (ranks.size() > kMost) lines.push_back(concat(kDim, "  and ", ranks.size() - kMost, " more"));
}

// Newest first.
Lines round_lines(const Job& job, std::size_t columns) {
  constexpr std::ptrdiff_t kMost = 6;
  const json::array& rounds = list(job.said, "rounds");
  if (rounds.size() < 2) return {};
  const std::int64_t num = std::max<std::int64_t>(whole(job.said, "round") - 1, 0);
  Lines lines = {concat(kTitle, "RESTARTS", kPlain, ' ', num)};
  const auto first = rounds.rbegin() + (text(rounds.back(), "cause").empty() ? 1 : 0);
  for (auto round = first; round != rounds.rend(); ++round) {
    if (round - first == kMost) {
      lines.push_back(concat(kDim, "  and ", rounds.rend() - round, " earlier ones"));
      break;
    }
    double seconds = 0;
    const json::value& spent = member(*round, "seconds");
    if (spent.is_object()) {
      for (const auto& each : spent.get_object()) seconds += number(spent, each.key()).value_or(0);
    }
    const std::int64_t last = whole(*round, "last_step");
    const bool has_steps = last >= 0 && last >= whole(*round, "first_step");
    const std::string cause = text(*round, "cause");
    add_wrapped(lines,
                concat("round ", whole(*round, "round"), " ended after ", seconds_text(seconds),
                       has_steps ? ", to step " + whole_text(last) : "", ": ",
                       cause.empty() ? "all workers succeeded" : cause),
                columns, kPlain, 3);
  }
  return lines;
}

Lines over_lines(const Job& job, std::size_t columns) {
  const std::int64_t code = whole(job.said, "exit_code");
  Lines lines;
  Lines facts = {code == 0 ? concat(kGood, "ended well") : concat(kBad, "exit code ", code)};
  const std::string began = text(job.said, "began");
  if (!began.empty()) facts.push_back("began " + began);
  facts.push_back("ended " + text(job.said, "ended"));
  for (const auto& [name, what] :
       {std::pair{"rounds", "rounds "}, std::pair{"failures", "failures "},
        std::pair{"node_losses", "node losses "}, std::pair{"preemptions", "preemptions "}}) {
    const std::int64_t number = whole(job.said, name);
    if (number > 0 || *name != 'p') facts.push_back(what + std::to_string(number));
  }
  add_facts(lines, facts, columns);
  add_wrapped(lines, text(job.said, "reason"), columns, kBad, 6);
  const std::string first = text(job.said, "first_failure");
  if (!first.empty()) add_wrapped(lines, "first: " + first, columns, kPlain, 4);
  add_wrapped(lines, text(job.said, "summary"), columns, kPlain, 6);
  constexpr std::size_t kNames = 16;
  add_wrapped(lines,
              concat(whole(job.said, "num_nodes"),
                     " nodes: ", names_text(texts(job.said, "nodes"), kNames)),
              columns, kDim, 6);
  return lines;
}

}  // namespace

char phase_style(std::string_view phase) {
  if (phase == "running") return kGood;
  return phase == "stopping" ? kBad : phase == "ended" ? kDim : kWarn;
}

Lines job_lines(const Job& job, const JobHistory& history, NodeOrder order, const PanelSize& size) {
  if (job.is_over) return over_lines(job, size.columns);
  Lines lines;
  const std::string waits = waits_text(job);
  add_wrapped(lines, waits.empty() ? "all is in order: nobody is waited for" : waits, size.columns,
              waits.empty() ? kGood : kWarn, 3);
  add_wrapped(lines, text(job.said, "reason"), size.columns, kBad, 4);
  add_hang(lines, job, size.columns);
  add_facts(lines, figures(job), size.columns);
  for (const Lines& section :
       {training_lines(job, history, size.columns), rank_lines(job, size.columns, size.cell_rows),
        round_lines(job, size.columns), node_lines(job, order, size.columns),
        machine_lines(job, history, size.columns)}) {
    if (size.has_gaps && !section.empty()) lines.emplace_back();
    lines.insert(lines.end(), section.begin(), section.end());
  }
  return lines;
}

}  // namespace ddprun::top
