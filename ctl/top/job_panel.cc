// SPDX-License-Identifier: Apache-2.0
#include "ctl/top/job_panel.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "common/log.h"
#include "ctl/number_texts.h"
#include "ctl/top/node_table.h"
#include "ctl/top/rank_cells.h"
#include "ctl/top/sparkline.h"

namespace ddprun::top {

using ctl::count_text, ctl::number_text, ctl::percent_text, ctl::rate_text, ctl::seconds_text;
using ctl::whole_text;

namespace {

using Lines = std::vector<Line>;

void add_wrapped(Lines& lines, std::string_view text, std::size_t columns, Style style,
                 std::size_t most) {
  for (const std::string& part : wrapped(text, columns, most)) lines.emplace_back(part, style);
}

void append(Lines& lines, Lines more) {
  lines.insert(lines.end(), std::make_move_iterator(more.begin()),
               std::make_move_iterator(more.end()));
}

// Facts with " · " between, on as many lines as they need.
void add_facts(Lines& lines, const Lines& facts, std::size_t columns) {
  Line line;
  for (const Line& fact : facts) {
    constexpr std::size_t kBetween = 3;
    if (!line.empty() && line.columns() + kBetween + fact.columns() > columns) {
      lines.push_back(std::exchange(line, {}));
    }
    if (!line.empty()) line.add(" · ", Style::kDim);
    line.add(fact);
  }
  if (!line.empty()) lines.push_back(line);
}

// "failures 2/3": some of what was granted is gone, or all.
Line budget(const char* name, std::int64_t used, std::int64_t most) {
  const bool is_over = most > 0 && used >= most;
  const Style style = used == 0 ? Style::kPlain : is_over ? Style::kBad : Style::kWarn;
  return Line(concat(name, ' ', whole_text(used), '/', whole_text(most)), style);
}

std::string nodes_text(const Job& job) {
  std::size_t members = job.num_hidden;
  for (const Node& node : job.nodes) members += node.node_rank ? 1 : 0;
  const std::string most = job.min_nodes == job.max_nodes
                               ? whole_text(job.max_nodes)
                               : concat(job.min_nodes, "–", job.max_nodes);
  return concat(members, " of ", most, job.max_nodes == 1 ? " node" : " nodes");
}

Lines figures(const Job& job) {
  Lines facts;
  facts.emplace_back(concat("round ", job.round));
  facts.emplace_back(nodes_text(job));
  if (job.phase == "running" && !job.rounds.empty()) {
    facts.emplace_back(concat(whole_text(job.rounds.back().world_size), " ranks"));
  }
  if (job.ettr) facts.emplace_back("ETTR " + percent_text(*job.ettr));
  facts.push_back(budget("failures", job.failures, job.max_restarts));
  facts.push_back(budget("node losses", job.node_losses, job.max_node_losses));
  if (job.preemptions > 0) {
    facts.push_back(budget("preemptions", job.preemptions, job.max_preemptions));
  }
  if (job.idle_rounds > 0) {
    facts.push_back(budget("rounds without a step", job.idle_rounds, job.max_idle_rounds));
  }
  return facts;
}

// "loss        2.31  ▅▄▃▂▂  2.31 to 4.12"
Line series_line(const char* name, const std::string& now, const Series& series,
                 std::size_t columns, std::string (*text)(double), const std::string& more = "") {
  constexpr std::size_t kName = 11, kNow = 10, kMostBars = 60, kBehind = 22, kWide = 60;
  Line line;
  line.add_left(name, kName, Style::kDim).add_left(now, kNow, Style::kBold);
  const bool has_range = columns >= kWide;
  const std::size_t used = kName + kNow + (has_range ? kBehind : 1);
  const std::size_t room = columns > used + 4 ? columns - used : 0;
  const Sparkline spark = sparkline(series.values(), std::min(room, kMostBars));
  if (!spark.bars.empty()) {
    line.add(" " + spark.bars, Style::kInfo);
    if (has_range && spark.low < spark.high) {
      line.add(concat(" ", text(spark.low), " to ", text(spark.high)), Style::kDim);
    }
  }
  if (!more.empty() && line.columns() + 2 + columns_of(more) <= columns) line.add("  " + more);
  line.cut(columns);
  return line;
}

Lines training_lines(const Job& job, const JobHistory& history, std::size_t columns) {
  Lines lines;
  if (!job.training) return lines;
  const Training& training = *job.training;
  Line title("TRAINING", Style::kTitle);
  title.add(concat(" step ", whole_text(training.step)), Style::kBold);
  if (!training.phase.empty()) title.add(concat(" (", training.phase, ")"));
  lines.push_back(title);
  if (training.loss || training.nan_ranks > 0) {
    lines.push_back(series_line("loss", training.loss ? number_text(*training.loss) : "NaN",
                                history.loss, columns, number_text));
  }
  if (training.nan_ranks > 0) {
    add_wrapped(lines, "the loss is no number on " + count_text(training.nan_ranks, "rank"),
                columns, Style::kBad, 2);
  }
  if (training.samples_per_second) {
    lines.push_back(series_line("samples/s", number_text(*training.samples_per_second),
                                history.samples, columns, number_text));
  }
  if (!training.step_seconds) return lines;
  const Spread& step = *training.step_seconds;
  lines.push_back(
      series_line("step time", seconds_text(step.mean), history.step, columns, seconds_text));
  Lines parts;
  const auto add_part = [&parts](const char* name, const std::optional<Spread>& spread) {
    if (!spread) return;
    parts.emplace_back(concat(name, ' ', seconds_text(spread->mean), ", worst ",
                              seconds_text(spread->worst), " (rank ", spread->worst_rank, ")"));
  };
  parts.emplace_back(
      concat("worst step ", seconds_text(step.worst), " (rank ", step.worst_rank, ")"));
  add_part("communication not hidden", training.exposed);
  add_part("waits for data", training.loader);
  add_facts(lines, parts, columns);
  return lines;
}

Lines machine_lines(const Job& job, const JobHistory& history, std::size_t columns) {
  Lines lines;
  const Sums sums = sums_of(job);
  if (sums.num_nodes == 0) return lines;
  lines.emplace_back("MACHINES", Style::kTitle);
  if (sums.num_gpus > 0) {
    lines.push_back(series_line("GPU mean", percent_text(sums.gpu_mean()), history.gpu, columns,
                                percent_text,
                                sums.num_gpus > 1 ? "least " + percent_text(sums.least_gpu) : ""));
  }
  if (sums.num_cpus > 0) {
    lines.push_back(
        series_line("CPU mean", percent_text(sums.cpu_mean()), history.cpu, columns, percent_text));
  }
  lines.push_back(series_line(
      "network", rate_text(sums.received + sums.sent), history.network, columns, rate_text,
      concat("in ", rate_text(sums.received), ", out ", rate_text(sums.sent))));
  return lines;
}

void add_hang(Lines& lines, const Job& job, std::size_t columns) {
  if (!job.hang || job.hang->round != job.round) return;
  constexpr std::size_t kMost = 8;
  add_wrapped(lines, "HANG: " + job.hang->text, columns, Style::kBad, 4);
  const auto& ranks = job.hang->lines;
  for (std::size_t i = 0; i < std::min(kMost, ranks.size()); ++i) {
    add_wrapped(lines, "  " + ranks[i], columns, Style::kPlain, 2);
  }
  if (ranks.size() > kMost) {
    lines.emplace_back(concat("  and ", ranks.size() - kMost, " more"), Style::kDim);
  }
}

// Newest first.
Lines round_lines(const Job& job, std::size_t columns) {
  Lines lines;
  if (job.rounds.size() < 2) return lines;
  constexpr std::size_t kMost = 6;
  Line title("RESTARTS", Style::kTitle);
  title.add(concat(" ", job.round > 0 ? job.round - 1 : 0));
  lines.push_back(title);
  std::size_t num = 0;
  for (auto round = job.rounds.rbegin(); round != job.rounds.rend(); ++round) {
    const bool is_live = round == job.rounds.rbegin() && round->cause.empty();
    if (is_live) continue;
    if (++num > kMost) {
      lines.emplace_back(concat("  and ", job.rounds.rend() - round, " earlier ones"), Style::kDim);
      break;
    }
    const std::string steps = round->last_step >= 0 && round->last_step >= round->first_step
                                  ? concat(", to step ", whole_text(round->last_step))
                                  : "";
    const std::string cause = round->cause.empty() ? "all workers succeeded" : round->cause;
    add_wrapped(lines,
                concat("round ", round->round, " ended after ", seconds_text(round->seconds), steps,
                       ": ", cause),
                columns, Style::kPlain, 3);
  }
  return lines;
}

}  // namespace

Style phase_style(std::string_view phase) {
  if (phase == "running") return Style::kGood;
  if (phase == "stopping") return Style::kBad;
  return phase == "ended" ? Style::kDim : Style::kWarn;
}

std::vector<Line> job_lines(const Job& job, const JobHistory& history, NodeOrder order,
                            const PanelSize& size) {
  Lines lines;
  const std::string waits = waits_text(job);
  if (waits.empty()) {
    lines.emplace_back("all is in order: nobody is waited for", Style::kGood);
  } else {
    add_wrapped(lines, waits, size.columns, Style::kWarn, 3);
  }
  if (!job.reason.empty()) add_wrapped(lines, job.reason, size.columns, Style::kBad, 4);
  add_hang(lines, job, size.columns);
  add_facts(lines, figures(job), size.columns);
  const auto add_section = [&](Lines section) {
    if (size.has_gaps && !section.empty()) lines.emplace_back();
    append(lines, std::move(section));
  };
  add_section(training_lines(job, history, size.columns));
  Lines ranks = rank_lines(job, size.columns, size.cell_rows);
  append(ranks, slow_lines(job, size.columns, 5));
  add_section(std::move(ranks));
  add_section(round_lines(job, size.columns));
  add_section(node_lines(job, order, size.columns));
  add_section(machine_lines(job, history, size.columns));
  return lines;
}

std::vector<Line> finished_lines(const FinishedJob& job, std::size_t columns) {
  Lines lines;
  const Style style = job.exit_code == 0 ? Style::kGood : Style::kBad;
  Lines facts;
  facts.emplace_back(job.exit_code == 0 ? "ended well" : concat("exit code ", job.exit_code),
                     style);
  if (!job.began.empty()) facts.emplace_back("began " + job.began);
  facts.emplace_back("ended " + job.ended);
  facts.emplace_back(concat("rounds ", job.rounds));
  facts.emplace_back(concat("failures ", job.failures));
  facts.emplace_back(concat("node losses ", job.node_losses));
  if (job.preemptions > 0) facts.emplace_back(concat("preemptions ", job.preemptions));
  add_facts(lines, facts, columns);
  if (!job.reason.empty()) add_wrapped(lines, job.reason, columns, Style::kBad, 6);
  if (!job.first_failure.empty()) {
    add_wrapped(lines, "first: " + job.first_failure, columns, Style::kPlain, 4);
  }
  if (!job.summary.empty()) add_wrapped(lines, job.summary, columns, Style::kPlain, 6);
  constexpr std::size_t kNames = 16;
  add_wrapped(lines, concat(job.num_nodes, " nodes: ", names_text(job.nodes, kNames)), columns,
              Style::kDim, 6);
  return lines;
}

}  // namespace ddprun::top
