// SPDX-License-Identifier: Apache-2.0
#include "ctl/top/rank_cells.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "common/log.h"
#include "ctl/number_texts.h"
#include "ctl/top/sparkline.h"

namespace ddprun::top {

using ctl::seconds_text, ctl::whole_text;

namespace {

// In the order of how much they matter: a cell of several shows its last one.
enum class Cell {
  kSucceeded,
  kSpare,
  kIdle,
  kRunning,
  kStarting,
  kStopping,
  kOther,
  kSlow,
  kFailed,
  kLost
};
constexpr std::size_t kNumCells = 10;
struct Sign {
  const char *text, *name;
  Style style;
};
constexpr std::array<Sign, kNumCells> kSigns = {{{"✓", "finished", Style::kGood},
                                                 {"○", "spare", Style::kDim},
                                                 {"○", "waiting for a round", Style::kDim},
                                                 {"▪", "running", Style::kInfo},
                                                 {"▸", "starting", Style::kWarn},
                                                 {"■", "being stopped", Style::kWarn},
                                                 {"?", "in another state", Style::kWarn},
                                                 {"▲", "straggling", Style::kWarn},
                                                 {"✕", "failed", Style::kBad},
                                                 {"!", "without a connection", Style::kBad}}};
const Sign& sign_of(Cell cell) { return kSigns.at(static_cast<std::size_t>(cell)); }

Cell cell_of(NodeState state) {
  switch (state) {
    case NodeState::kIdle:
      return Cell::kIdle;
    case NodeState::kSpare:
      return Cell::kSpare;
    case NodeState::kStarting:
      return Cell::kStarting;
    case NodeState::kRunning:
      return Cell::kRunning;
    case NodeState::kSucceeded:
      return Cell::kSucceeded;
    case NodeState::kStopping:
      return Cell::kStopping;
    case NodeState::kFailed:
      return Cell::kFailed;
    case NodeState::kLost:
      return Cell::kLost;
    case NodeState::kOther:
      return Cell::kOther;
  }
  return Cell::kOther;
}

struct Shown {
  Cell cell = Cell::kSucceeded;
  int level = -1;  // of its own part; -1: not known
  void merge(const Shown& other) {
    cell = std::max(cell, other.cell);
    level = std::max(level, other.level);
  }
};

// What is known of single ranks.
struct Ranks {
  explicit Ranks(const Job& job) {
    std::vector<double> own;
    for (const Node& node : job.nodes) {
      for (const RankTime& time : node.times) own.push_back(time.own_seconds);
    }
    if (!own.empty()) {
      const auto middle = own.begin() + static_cast<std::ptrdiff_t>(own.size() / 2);
      std::nth_element(own.begin(), middle, own.end());
      median_own = *middle;
    }
    for (const std::string& text : job.stragglers) slow.insert(rank_named(text));
    if ((job.phase == "stopping" || job.phase == "ended") && !job.rounds.empty()) {
      failed = rank_named(job.rounds.back().first_failure);
    }
  }

  // The middle one is at a third of the height: twice as long is well above, half as long below.
  int level(double own_seconds) const {
    constexpr double kMedianLevel = 2;
    if (median_own <= 0) return 0;
    const double level = kMedianLevel * own_seconds / median_own;
    return static_cast<int>(std::lround(std::clamp(level, 0.0, 1.0 * (kNumLevels - 1))));
  }

  Cell cell(const Node& node, std::int64_t local) const {
    if (!node.first_rank) return cell_of(node.state);
    const std::int64_t rank = *node.first_rank + local;
    if (rank == failed) return Cell::kFailed;
    const bool is_slow = node.state == NodeState::kRunning && slow.contains(rank);
    return is_slow ? Cell::kSlow : cell_of(node.state);
  }

  double median_own = 0;
  std::set<std::int64_t> slow;
  std::int64_t failed = -1;
};

std::vector<Shown> cells_of(const Node& node, const Ranks& ranks) {
  std::vector<Shown> cells(static_cast<std::size_t>(node.num_workers));
  for (std::size_t local = 0; local < cells.size(); ++local) {
    cells[local].cell = ranks.cell(node, static_cast<std::int64_t>(local));
  }
  for (const RankTime& time : node.times) {
    const std::int64_t local = time.rank - node.first_rank.value_or(time.rank);
    if (node.first_rank && local >= 0 && local < node.num_workers) {
      cells[static_cast<std::size_t>(local)].level = ranks.level(time.own_seconds);
    }
  }
  return cells;
}

// Without going through its ranks: there may be very many.
Shown cell_of_node(const Node& node, const Ranks& ranks) {
  Shown cell{cell_of(node.state), -1};
  for (const RankTime& time : node.times) cell.merge({cell.cell, ranks.level(time.own_seconds)});
  if (!node.first_rank) return cell;
  const std::int64_t first = *node.first_rank, end = first + node.num_workers;
  const auto found = ranks.slow.lower_bound(first);
  const bool has_slow = found != ranks.slow.end() && *found < end;
  if (has_slow && node.state == NodeState::kRunning) cell.merge({Cell::kSlow, -1});
  if (ranks.failed >= first && ranks.failed < end) cell.merge({Cell::kFailed, -1});
  return cell;
}

void put(Line& line, const Shown& shown) {
  const Sign& sign = sign_of(shown.cell);
  if (shown.cell != Cell::kRunning || shown.level < 0) {
    line.add(sign.text, sign.style);
  } else {
    constexpr int kWarnFrom = 4;  // twice the median
    line.add(level_sign(shown.level), shown.level >= kWarnFrom ? Style::kWarn : sign.style);
  }
}

// Each group is on one row, unless it alone is longer.
std::vector<Line> rows_of(const std::vector<std::vector<Shown>>& groups,
                          const std::vector<std::int64_t>& firsts, std::size_t columns,
                          bool has_gaps) {
  std::vector<Line> rows;
  constexpr std::size_t kLabel = 7;  // the number of a row's first one
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const std::size_t gap = has_gaps && !rows.empty() && rows.back().columns() > kLabel ? 1 : 0;
    for (std::size_t at = 0; at < groups[i].size(); ++at) {
      const std::size_t needed = at == 0 && has_gaps ? gap + groups[i].size() : 1;
      const std::size_t least = at == 0 && has_gaps ? std::min(needed, columns - kLabel) : 1;
      if (rows.empty() || rows.back().columns() + least > columns) {
        Line& row = rows.emplace_back();
        row.add_right(firsts[i] < 0 ? "" : std::to_string(firsts[i] + static_cast<int>(at)),
                      kLabel - 1, Style::kDim);
        row.add(" ");
      } else if (at == 0 && gap > 0) {
        rows.back().add(" ");
      }
      put(rows.back(), groups[i][at]);
    }
  }
  return rows;
}

// "16 ranks: 15 running, 1 ▲ straggling"
Line summary(const Job& job, const Ranks& ranks) {
  std::array<std::int64_t, kNumCells> counts{};
  std::int64_t num_ranks = 0;
  for (const Node& node : job.nodes) {
    num_ranks += node.num_workers;
    std::int64_t of_state = node.num_workers;
    const auto take = [&](std::int64_t rank, Cell cell) {
      if (!node.first_rank || rank < *node.first_rank ||
          rank >= *node.first_rank + node.num_workers) {
        return;
      }
      ++counts.at(static_cast<std::size_t>(cell));
      --of_state;
    };
    take(ranks.failed, Cell::kFailed);
    if (node.state == NodeState::kRunning) {
      for (const std::int64_t rank : ranks.slow) {
        if (rank != ranks.failed) take(rank, Cell::kSlow);
      }
    }
    counts.at(static_cast<std::size_t>(cell_of(node.state))) += of_state;
  }
  Line line;
  line.add("RANKS ", Style::kTitle).add(whole_text(num_ranks) + ": ");
  bool is_first = true;
  for (std::size_t i = kNumCells; i-- > 0;) {
    if (counts.at(i) == 0) continue;
    const Sign& sign = kSigns.at(i);
    line.add(is_first ? "" : ", ").add(whole_text(counts.at(i)) + " ");
    if (static_cast<Cell>(i) != Cell::kRunning) line.add(concat(sign.text, " "), sign.style);
    line.add(sign.name, sign.style);
    is_first = false;
  }
  if (job.num_hidden > 0) line.add(concat("; ", job.num_hidden, " more nodes not shown"));
  return line;
}

}  // namespace

std::vector<Line> rank_lines(const Job& job, std::size_t columns, std::size_t rows) {
  constexpr std::int64_t kMostCells = 8'192;
  std::int64_t num_ranks = 0;
  for (const Node& node : job.nodes) num_ranks += node.num_workers;
  if (num_ranks == 0) return {};
  const Ranks ranks(job);
  std::vector<Line> lines = {summary(job, ranks)};
  std::vector<Line> cells;
  const auto fits = [&] { return !cells.empty() && (rows == 0 || cells.size() <= rows); };
  const char* what = "";
  if (num_ranks <= kMostCells) {
    std::vector<std::vector<Shown>> groups;
    std::vector<std::int64_t> firsts;
    for (const Node& node : job.nodes) {
      groups.push_back(cells_of(node, ranks));
      firsts.push_back(node.first_rank.value_or(-1));
    }
    cells = rows_of(groups, firsts, columns, true);
    if (!fits()) cells = rows_of(groups, firsts, columns, false);
  }
  // One for each node, then one for two, four, ….
  std::string by_nodes;
  for (std::size_t nodes = 1; !fits() && nodes <= 2 * job.nodes.size(); nodes *= 2) {
    std::vector<Shown> all;
    for (std::size_t i = 0; i < job.nodes.size(); ++i) {
      if (i % nodes == 0) all.push_back({});
      all.back().merge(cell_of_node(job.nodes[i], ranks));
    }
    // Then a row begins with the number of its first node.
    cells = rows_of({all}, {nodes == 1 ? 0 : -1}, columns, false);
    by_nodes = nodes == 1 ? "each cell is a node, its slowest rank"
                          : concat("each cell is ", nodes, " nodes, their slowest rank");
    what = by_nodes.c_str();
  }
  lines.insert(lines.end(), cells.begin(), cells.end());
  Line legend;
  if (*what != '\0') legend.add(what, Style::kDim);
  if (ranks.median_own > 0) {
    legend.add(concat(legend.empty() ? "" : "; ", "height: own part of a step, ",
                      level_sign(ranks.level(ranks.median_own)), " is the median, ",
                      seconds_text(ranks.median_own)),
               Style::kDim);
  }
  if (!legend.empty()) lines.push_back(legend);
  return lines;
}

std::vector<Line> slow_lines(const Job& job, std::size_t columns, std::size_t most) {
  std::vector<Line> lines;
  const Ranks ranks(job);
  for (const std::string& text : job.stragglers) {
    if (lines.size() + 1 >= most && job.stragglers.size() > most) {
      lines.emplace_back(concat("▲ and ", job.stragglers.size() - lines.size(), " more"),
                         Style::kWarn);
      return lines;
    }
    for (const std::string& part : wrapped("▲ " + text, columns, 2)) {
      lines.emplace_back(part, Style::kWarn);
    }
  }
  std::vector<std::pair<RankTime, const Node*>> times;
  for (const Node& node : job.nodes) {
    for (const RankTime& time : node.times) times.emplace_back(time, &node);
  }
  constexpr std::size_t kNamed = 3;
  constexpr double kNoticed = 1.1;  // times the median
  if (lines.size() >= most) return lines;
  std::erase_if(times, [&ranks](const auto& each) {
    return each.first.own_seconds < kNoticed * ranks.median_own;
  });
  if (times.empty()) return lines;
  const std::size_t num = std::min(kNamed, times.size());
  std::partial_sort(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(num), times.end(),
                    [](const auto& a, const auto& b) {
                      return std::pair(a.first.own_seconds, b.first.rank) >
                             std::pair(b.first.own_seconds, a.first.rank);
                    });
  Line line("slowest: ", Style::kDim);
  for (std::size_t i = 0; i < num; ++i) {
    const auto& [time, node] = times[i];
    Line one;
    one.add(i == 0 ? "" : ", ").add(concat("rank ", time.rank), Style::kBold);
    one.add(concat(" (", node->host, ") ", seconds_text(time.own_seconds), " of ",
                   seconds_text(time.seconds)));
    if (i > 0 && line.columns() + one.columns() > columns) break;
    line.add(one);
  }
  line.cut(columns);
  lines.push_back(line);
  return lines;
}

}  // namespace ddprun::top
