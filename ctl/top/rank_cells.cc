// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cmath>

#include "common/log.h"
#include "ctl/number_texts.h"
#include "ctl/top/picture.h"

namespace ddprun::top {

using ctl::seconds_text, ctl::whole_text;

namespace {

struct Cell {
  Condition condition = Condition::kSucceeded;
  int level = -1;  // of the rank's own part of a step; -1: not known
  void merge(const Cell& other) {
    condition = std::max(condition, other.condition);
    level = std::max(level, other.level);
  }
};
using Cells = std::vector<Cell>;

// Of what the ranks take for their own part of a step; 0: none says it.
double median_own(const Job& job) {
  std::vector<double> own;
  for (const Node& node : job.nodes) {
    for (const RankTime& time : node.times) own.push_back(time.own_seconds);
  }
  if (own.empty()) return 0;
  const auto middle = own.begin() + static_cast<std::ptrdiff_t>(own.size() / 2);
  std::nth_element(own.begin(), middle, own.end());
  return *middle;
}

// The median is at a third of the height: twice as long is well above, half as long below.
constexpr int kMedianLevel = 2, kWarnFrom = 2 * kMedianLevel;
int level_of(double own_seconds, double median) {
  if (median <= 0) return 0;
  const double level = kMedianLevel * own_seconds / median;
  return static_cast<int>(std::lround(std::clamp(level, 0.0, 1.0 * (kNumLevels - 1))));
}

// One for each rank, or one of all: there may be very many, and only those that differ are looked
// at.
Cells cells_of(const Job& job, const Node& node, double median, bool is_one) {
  Cells cells(is_one ? 1 : static_cast<std::size_t>(node.num_workers), {node.condition});
  const auto merge = [&](std::int64_t rank, const Cell& cell) {
    if (is_one) cells.front().merge(cell);
    if (!is_one) cells[static_cast<std::size_t>(rank - *node.first_rank)].merge(cell);
  };
  for (const std::int64_t rank : job.slow) {
    if (node.has(rank) && node.condition == Condition::kRunning) merge(rank, {Condition::kSlow});
  }
  if (node.has(job.failed)) merge(job.failed, {Condition::kFailed});
  for (const RankTime& time : node.times) {
    if (!is_one && !node.has(time.rank)) continue;
    merge(time.rank, {node.condition, level_of(time.own_seconds, median)});
  }
  return cells;
}

// Groups in rows that begin with the number of their first cell, -1: none. With gaps each group is
// on one row, unless it alone is longer.
Lines rows_of(const std::vector<Cells>& groups, const std::vector<std::int64_t>& firsts,
              std::size_t columns, bool has_gaps) {
  constexpr std::size_t kLabel = 7;
  Lines rows;
  std::size_t used = columns;  // of the last row
  for (std::size_t i = 0; i < groups.size(); ++i) {
    for (std::size_t at = 0; at < groups[i].size(); ++at) {
      const std::size_t gap = has_gaps && at == 0 && used > kLabel ? 1 : 0;
      const std::size_t group = has_gaps && at == 0 ? groups[i].size() + gap : 1;
      if (used + std::min(group, columns - kLabel) > columns) {
        const auto number = firsts[i] + static_cast<std::int64_t>(at);
        rows.push_back(
            concat(kDim, right(firsts[i] < 0 ? "" : std::to_string(number), kLabel - 1), ' '));
        used = kLabel;
      } else {
        rows.back().append(gap, ' ');
        used += gap;
      }
      const Cell& cell = groups[i][at];
      const ConditionText& sign = text_of(cell.condition);
      const bool has_level = cell.condition == Condition::kRunning && cell.level >= 0;
      rows.back() += has_level && cell.level >= kWarnFrom ? kWarn : sign.style;
      rows.back() += has_level ? level_sign(cell.level) : sign.sign;
      ++used;
    }
  }
  return rows;
}

// "16 ranks: 15 running, 1 ▲ straggling"
std::string summary(const Job& job) {
  std::array<std::int64_t, kNumConditions> counts{};
  std::int64_t num_ranks = 0;
  for (const Node& node : job.nodes) {
    std::int64_t slow = 0;
    const bool has_failed = node.has(job.failed);
    if (node.condition == Condition::kRunning) {
      for (const std::int64_t rank : job.slow) slow += rank != job.failed && node.has(rank);
    }
    counts.at(static_cast<std::size_t>(Condition::kSlow)) += slow;
    counts.at(static_cast<std::size_t>(Condition::kFailed)) += has_failed;
    counts.at(static_cast<std::size_t>(node.condition)) += node.num_workers - slow - has_failed;
    num_ranks += node.num_workers;
  }
  std::string line = concat(kTitle, "RANKS ", kPlain, whole_text(num_ranks), ':');
  const char* between = " ";
  for (std::size_t i = kNumConditions; i-- > 0;) {
    if (counts.at(i) == 0) continue;
    const ConditionText& text = text_of(static_cast<Condition>(i));
    const bool is_running = static_cast<Condition>(i) == Condition::kRunning;
    line += concat(kPlain, between, whole_text(counts.at(i)), ' ', text.style,
                   is_running ? "" : concat(text.sign, ' '), text.words);
    between = ", ";
  }
  if (job.num_hidden > 0) line += concat(kPlain, "; ", job.num_hidden, " more nodes not shown");
  return line;
}

// At most `most` lines.
Lines slow_lines(const Job& job, double median, std::size_t columns, std::size_t most) {
  constexpr std::size_t kNamed = 3;
  constexpr double kNoticed = 1.1;  // times the median
  Lines lines;
  const std::vector<std::string> stragglers = texts(job.said, "stragglers");
  for (std::size_t i = 0; i < stragglers.size(); ++i) {
    if (lines.size() + 1 >= most && stragglers.size() > most) {
      lines.push_back(concat(kWarn, "▲ and ", stragglers.size() - i, " more"));
      break;
    }
    add_wrapped(lines, "▲ " + stragglers[i], columns, kWarn, 2);
  }
  if (lines.size() >= most) return lines;
  std::vector<std::pair<const RankTime*, const Node*>> times;
  for (const Node& node : job.nodes) {
    for (const RankTime& time : node.times) {
      if (time.own_seconds >= kNoticed * median) times.emplace_back(&time, &node);
    }
  }
  const std::size_t num = std::min(kNamed, times.size());
  std::partial_sort(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(num), times.end(),
                    [](const auto& a, const auto& b) {
                      return std::pair(a.first->own_seconds, b.first->rank) >
                             std::pair(b.first->own_seconds, a.first->rank);
                    });
  std::string line;
  for (std::size_t i = 0; i < num; ++i) {
    const auto& [time, node] = times[i];
    const std::string one = concat(
        i == 0 ? concat(kDim, "slowest: ") : ", ", kBold, "rank ", time->rank, kPlain, " (",
        node->host, ") ", seconds_text(time->own_seconds), " of ", seconds_text(time->seconds));
    if (i == 0 || columns_of(line) + columns_of(one) <= columns) line += one;
  }
  if (!line.empty()) lines.push_back(line);
  return lines;
}

}  // namespace

Lines rank_lines(const Job& job, std::size_t columns, std::size_t most_rows) {
  constexpr std::int64_t kMostCells = 8'192;
  std::int64_t num_ranks = 0;
  for (const Node& node : job.nodes) num_ranks += node.num_workers;
  if (num_ranks == 0) return {};
  const double median = median_own(job);
  const std::size_t most = most_rows == 0 ? static_cast<std::size_t>(-1) : most_rows;
  Lines rows;
  if (num_ranks <= kMostCells) {
    std::vector<Cells> groups;
    std::vector<std::int64_t> firsts;
    for (const Node& node : job.nodes) {
      groups.push_back(cells_of(job, node, median, false));
      firsts.push_back(node.first_rank.value_or(-1));
    }
    rows = rows_of(groups, firsts, columns, true);
    if (rows.size() > most) rows = rows_of(groups, firsts, columns, false);
  }
  std::string legend;
  for (std::size_t nodes = 1; (rows.empty() || rows.size() > most) && nodes <= 2 * job.nodes.size();
       nodes *= 2) {
    Cells cells;
    for (std::size_t i = 0; i < job.nodes.size(); ++i) {
      if (i % nodes == 0) cells.emplace_back();
      cells.back().merge(cells_of(job, job.nodes[i], median, true).front());
    }
    rows = rows_of({cells}, {nodes == 1 ? 0 : -1}, columns, false);
    legend = nodes == 1 ? "each cell is a node, its slowest rank"
                        : concat("each cell is ", nodes, " nodes, their slowest rank");
  }
  if (median > 0) {
    legend +=
        concat(legend.empty() ? "" : "; ", "height: own part of a step, ",
               level_sign(level_of(median, median)), " is the median, ", seconds_text(median));
  }
  rows.insert(rows.begin(), summary(job));
  if (!legend.empty()) rows.push_back(kDim + legend);
  const Lines slow = slow_lines(job, median, columns, 5);
  rows.insert(rows.end(), slow.begin(), slow.end());
  return rows;
}

}  // namespace ddprun::top
