// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>

#include "common/log.h"
#include "ctl/number_texts.h"
#include "ctl/top/picture.h"

namespace ddprun::top {

using ctl::seconds_text, ctl::whole_text;

namespace {

struct Cell {
  Condition condition = Condition::kSucceeded;
  double own = -1;           // the rank's own part of a step, seconds; less than 0: not known
  std::int64_t number = -1;  // for the begin of a row; -1: none
  std::size_t group = 0;     // so many cells of one node begin with this one

  void merge(Condition other, double other_own) {
    condition = std::max(condition, other);
    own = std::max(own, other_own);
  }
};

// The median of the ranks' own parts of a step, in seconds; 0: no rank says it.
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
std::string height_of(double own, double median) {
  constexpr double kMedianLevel = 2;
  return level_sign(median > 0 ? kMedianLevel * own / median : 0);
}

// `num_nodes` 0: one for each rank, in groups; else one for so many nodes. Then only those ranks
// are looked at that differ from their node: there may be very many.
std::vector<Cell> cells_of(const Job& job, std::size_t num_nodes) {
  std::vector<Cell> cells;
  for (std::size_t i = 0; i < job.nodes.size(); ++i) {
    const Node& node = job.nodes[i];
    const std::size_t first = cells.size();
    const auto size = static_cast<std::size_t>(num_nodes == 0 ? node.num_workers : 0);
    for (std::size_t local = 0; local < size; ++local) {
      const auto rank = node.first_rank.value_or(0) + static_cast<std::int64_t>(local);
      cells.push_back({node.condition, -1, node.first_rank ? rank : -1, local == 0 ? size : 0});
    }
    if (num_nodes > 0 && i % num_nodes == 0) {
      cells.push_back({.number = num_nodes == 1 ? static_cast<std::int64_t>(i) : -1});
    }
    if (num_nodes > 0) cells.back().merge(node.condition, -1);
    const auto merge = [&](std::int64_t rank, Condition condition, double own) {
      if (!node.has(rank)) return;
      const auto local = static_cast<std::size_t>(rank - *node.first_rank);
      cells[num_nodes == 0 ? first + local : cells.size() - 1].merge(condition, own);
    };
    for (const std::int64_t rank : job.slow) {
      if (node.condition == Condition::kRunning) merge(rank, Condition::kSlow, -1);
    }
    merge(job.failed, Condition::kFailed, -1);
    for (const RankTime& time : node.times) merge(time.rank, node.condition, time.own_seconds);
  }
  return cells;
}

// With gaps each group is on one row, unless it alone is longer.
Lines rows_of(const std::vector<Cell>& cells, double median, std::size_t columns, bool has_gaps) {
  constexpr std::size_t kLabel = 7;
  constexpr double kWarnFrom = 2;  // times the median
  Lines rows;
  std::size_t used = columns;  // of the last row
  for (const Cell& cell : cells) {
    const bool is_first = has_gaps && cell.group > 0;
    const std::size_t gap = is_first && used > kLabel ? 1 : 0;
    const std::size_t needed = is_first ? std::min(gap + cell.group, columns - kLabel) : 1;
    if (used + needed > columns) {
      const std::string number = cell.number < 0 ? "" : std::to_string(cell.number);
      rows.push_back(concat(kDim, right(number, kLabel - 1), ' '));
      used = kLabel;
    } else {
      rows.back().append(gap, ' ');
      used += gap;
    }
    const ConditionText& text = text_of(cell.condition);
    const bool has_height = cell.condition == Condition::kRunning && cell.own >= 0;
    rows.back() += has_height && median > 0 && cell.own >= kWarnFrom * median ? kWarn : text.style;
    rows.back() += has_height ? height_of(cell.own, median) : text.sign;
    ++used;
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
  const auto fits = [&] { return !rows.empty() && rows.size() <= most; };
  if (num_ranks <= kMostCells) rows = rows_of(cells_of(job, 0), median, columns, true);
  if (num_ranks <= kMostCells && !fits()) rows = rows_of(cells_of(job, 0), median, columns, false);
  std::string legend;
  for (std::size_t nodes = 1; !fits() && nodes <= 2 * job.nodes.size(); nodes *= 2) {
    rows = rows_of(cells_of(job, nodes), median, columns, false);
    legend = nodes == 1 ? "each cell is a node, its slowest rank"
                        : concat("each cell is ", nodes, " nodes, their slowest rank");
  }
  if (median > 0) {
    legend += concat(legend.empty() ? "" : "; ", "height: own part of a step, ",
                     height_of(median, median), " is the median, ", seconds_text(median));
  }
  rows.insert(rows.begin(), summary(job));
  if (!legend.empty()) rows.push_back(kDim + legend);
  const Lines slow = slow_lines(job, median, columns, 5);
  rows.insert(rows.end(), slow.begin(), slow.end());
  return rows;
}

}  // namespace ddprun::top
