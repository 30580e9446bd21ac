// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <limits>
#include <numeric>

#include "common/log.h"
#include "ctl/number_texts.h"
#include "ctl/top/picture.h"

namespace ddprun::top {
namespace {

constexpr char kNotKnown[] = "–";
constexpr std::size_t kNumColumns = 12, kHost = 1;
struct Column {
  const char* head;
  std::size_t least;  // its width
  bool is_left;
  int importance;  // without room those of 1 go first; 9 and more stay
};
constexpr std::array<Column, kNumColumns> kColumns = {{{"NODE", 4, false, 9},
                                                       {"HOST", 8, true, 11},
                                                       {"STATE", 9, true, 10},
                                                       {"RANKS", 5, false, 3},
                                                       {"CPU", 6, false, 6},
                                                       {"MEM", 6, false, 5},
                                                       {"GPU", 6, false, 7},
                                                       {"EACH", 4, true, 1},
                                                       {"IN", 8, false, 4},
                                                       {"OUT", 8, false, 4},
                                                       {"STEP", 7, false, 2},
                                                       {"OWN", 7, false, 8}}};

struct Row {
  std::array<std::string, kNumColumns> texts;
  char style = kPlain;
  double sort_value = 0;  // small ones first
};

Row row_of(const Job& job, const Node& node, NodeOrder order) {
  std::optional<double> step, own, gpu, traffic;
  std::string each;
  for (const RankTime& time : node.times) {
    step = std::max(step.value_or(0), time.seconds);
    own = std::max(own.value_or(0), time.own_seconds);
  }
  double sum = 0, num = 0;
  for (const auto& use : node.gpus) {
    each += use ? level_sign(*use * kLastLevel) : "?";
    if (use) sum += *use, ++num;
  }
  if (num > 0) gpu = sum / num;
  if (node.received || node.sent) traffic = node.received.value_or(0) + node.sent.value_or(0);
  const bool is_slow = std::any_of(job.slow.begin(), job.slow.end(),
                                   [&node](std::int64_t rank) { return node.has(rank); });
  const auto or_not_known = [](const std::optional<double>& value, std::string (*text)(double)) {
    return value ? text(*value) : kNotKnown;
  };
  std::string state = node.phase, ranks = kNotKnown;
  if (node.condition == Condition::kLost) state = "LOST";
  if (node.condition == Condition::kSpare || node.condition == Condition::kSucceeded) {
    state = text_of(node.condition).words;
  }
  if (node.num_workers > 0 && !node.first_rank) ranks = concat(node.num_workers, "×");
  if (node.num_workers > 0 && node.first_rank) {
    const std::int64_t last = *node.first_rank + node.num_workers - 1;
    ranks = node.num_workers == 1 ? std::to_string(last) : concat(*node.first_rank, "-", last);
  }
  Row row{.texts = {node.node_rank ? std::to_string(*node.node_rank) : kNotKnown, node.host,
                    (is_slow ? "▲ " : "") + state, ranks, or_not_known(node.cpu, ctl::percent_text),
                    or_not_known(node.memory, ctl::percent_text),
                    or_not_known(gpu, ctl::percent_text), node.gpus.size() > 1 ? each : kNotKnown,
                    or_not_known(node.received, ctl::rate_text),
                    or_not_known(node.sent, ctl::rate_text), or_not_known(step, ctl::seconds_text),
                    or_not_known(own, ctl::seconds_text)}};
  const bool is_running = node.condition == Condition::kRunning;
  row.style = is_running ? is_slow ? kWarn : kPlain : text_of(node.condition).style;
  constexpr double kLast = std::numeric_limits<double>::infinity();
  const auto most_first = [](const std::optional<double>& value) {
    return value ? -*value : kLast;
  };
  if (order == NodeOrder::kCpu) row.sort_value = most_first(node.cpu);
  if (order == NodeOrder::kGpu) row.sort_value = gpu.value_or(kLast);
  if (order == NodeOrder::kNetwork) row.sort_value = most_first(traffic);
  if (order == NodeOrder::kStepTime) row.sort_value = most_first(own);
  return row;
}

// 0: it isn't shown. Hosts have what is left.
std::array<std::size_t, kNumColumns> widths_of(const std::vector<Row>& rows, std::size_t columns) {
  std::array<std::size_t, kNumColumns> widths{};
  std::size_t longest_host = 0;
  for (std::size_t i = 0; i < kNumColumns; ++i) {
    bool is_there = kColumns[i].importance >= 9 || i == 3;
    std::size_t longest = kColumns[i].least;
    for (const Row& row : rows) {
      is_there = is_there || row.texts[i] != kNotKnown;
      longest = std::max(longest, columns_of(row.texts[i]));
    }
    if (i == kHost) longest_host = longest;
    if (is_there) widths[i] = i == kHost || i == 2 ? kColumns[i].least : longest;
  }
  const auto used = [&widths] {
    return std::accumulate(widths.begin(), widths.end(), kNumColumns - 1) -
           static_cast<std::size_t>(std::count(widths.begin(), widths.end(), 0U));
  };
  for (int gone = 1; used() > columns && gone < 9; ++gone) {
    for (std::size_t i = 0; i < kNumColumns; ++i) {
      if (kColumns[i].importance == gone) widths[i] = 0;
    }
  }
  if (used() < columns) widths[kHost] = std::min(longest_host, widths[kHost] + columns - used());
  return widths;
}

}  // namespace

Lines node_lines(const Job& job, NodeOrder order, std::size_t columns) {
  if (job.nodes.empty()) return {};
  std::vector<Row> rows;
  for (const Node& node : job.nodes) rows.push_back(row_of(job, node, order));
  std::stable_sort(rows.begin(), rows.end(),
                   [](const Row& a, const Row& b) { return a.sort_value < b.sort_value; });
  const auto widths = widths_of(rows, columns);
  Row head;
  head.style = kDim;
  for (std::size_t i = 0; i < kNumColumns; ++i) head.texts[i] = kColumns[i].head;
  rows.insert(rows.begin(), head);
  Lines lines = {concat(kTitle, "NODES", kDim, " by ", order_name(order))};
  for (const Row& row : rows) {
    std::string& line = lines.emplace_back(1, row.style);
    for (std::size_t i = 0; i < kNumColumns; ++i) {
      if (widths[i] == 0) continue;
      if (i > 0) line += ' ';
      line += kColumns[i].is_left ? left(row.texts[i], widths[i]) : right(row.texts[i], widths[i]);
    }
  }
  const json::value& excluded = member(job.said, "excluded");
  if (!excluded.is_object()) return lines;
  for (const auto& [host, why] : excluded.get_object()) {
    add_wrapped(lines, concat(harmless(host), " is excluded: ", text(excluded, host)), columns,
                kWarn, 2);
  }
  return lines;
}

}  // namespace ddprun::top
