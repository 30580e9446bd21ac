// SPDX-License-Identifier: Apache-2.0
#include "ctl/top/node_table.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "common/log.h"
#include "ctl/number_texts.h"
#include "ctl/top/sparkline.h"

namespace ddprun::top {

using ctl::percent_text, ctl::rate_text, ctl::seconds_text;

namespace {

// What is shown of a node, from its worst rank and all of its GPUs.
struct Row {
  const Node* node = nullptr;
  bool is_slow = false;  // one of its ranks lags behind
  std::optional<double> cpu, memory, gpu, received, sent, step, own;
};

Row row_of(const Node& node, const std::set<std::int64_t>& slow) {
  Row row;
  row.node = &node;
  if (node.first_rank) {
    const auto found = slow.lower_bound(*node.first_rank);
    row.is_slow = found != slow.end() && *found < *node.first_rank + node.num_workers;
  }
  for (const RankTime& time : node.times) {
    row.step = std::max(row.step.value_or(0), time.seconds);
    row.own = std::max(row.own.value_or(0), time.own_seconds);
  }
  if (!node.monitor) return row;
  const Monitor& monitor = *node.monitor;
  row.cpu = monitor.cpu;
  if (monitor.memory_used_bytes && monitor.memory_bytes.value_or(0) > 0) {
    row.memory = *monitor.memory_used_bytes / *monitor.memory_bytes;
  }
  row.received = monitor.received;
  row.sent = monitor.sent;
  double sum = 0;
  std::size_t num = 0;
  for (const Gpu& gpu : monitor.gpus) {
    if (gpu.use) sum += *gpu.use, ++num;
  }
  if (num > 0) row.gpu = sum / static_cast<double>(num);
  return row;
}

// Small ones first; what isn't known last.
double sort_value(const Row& row, NodeOrder order) {
  const auto most_first = [](const std::optional<double>& value) {
    return value ? -*value : std::numeric_limits<double>::infinity();
  };
  switch (order) {
    case NodeOrder::kRank:
      return 0;
    case NodeOrder::kCpu:
      return most_first(row.cpu);
    case NodeOrder::kGpu:
      return row.gpu.value_or(std::numeric_limits<double>::infinity());
    case NodeOrder::kNetwork:
      return row.received || row.sent ? -row.received.value_or(0) - row.sent.value_or(0)
                                      : std::numeric_limits<double>::infinity();
    case NodeOrder::kStepTime:
      return most_first(row.own);
  }
  return 0;
}

std::string state_text(const Node& node) {
  switch (node.state) {
    case NodeState::kSpare:
      return "spare";
    case NodeState::kLost:
      return "LOST";
    case NodeState::kSucceeded:
      return "finished";
    default:
      return node.phase;
  }
}

Style state_style(const Row& row) {
  switch (row.node->state) {
    case NodeState::kLost:
    case NodeState::kFailed:
      return Style::kBad;
    case NodeState::kStarting:
    case NodeState::kStopping:
    case NodeState::kOther:
      return Style::kWarn;
    case NodeState::kSucceeded:
      return Style::kGood;
    case NodeState::kRunning:
      return row.is_slow ? Style::kWarn : Style::kPlain;
    default:
      return Style::kDim;
  }
}

std::string percent_or(const std::optional<double>& share) {
  return share ? percent_text(*share) : "–";
}
std::string rate_or(const std::optional<double>& rate) { return rate ? rate_text(*rate) : "–"; }
std::string time_or(const std::optional<double>& seconds) {
  return seconds ? seconds_text(*seconds) : "–";
}

std::string ranks_text(const Node& node) {
  if (node.num_workers == 0) return "–";
  if (!node.first_rank) return concat(node.num_workers, "×");
  const std::int64_t last = *node.first_rank + node.num_workers - 1;
  return node.num_workers == 1 ? std::to_string(last) : concat(*node.first_rank, "-", last);
}

std::string gpu_bars(const Row& row) {
  std::string bars;
  if (!row.node->monitor) return bars;
  for (const Gpu& gpu : row.node->monitor->gpus) {
    bars += gpu.use ? level_sign(static_cast<int>(*gpu.use * (kNumLevels - 1) + 0.5)) : "?";
  }
  return bars;
}

struct Column {
  const char* head;
  std::size_t width;
  bool is_right;
  bool is_there;
  int importance;  // where there is no room, those of 1 go first
  std::function<std::string(const Row&)> text;
};

std::vector<Column> columns_for(const std::vector<Row>& rows) {
  const auto any = [&rows](const auto& has) { return std::any_of(rows.begin(), rows.end(), has); };
  const bool has_cpu = any([](const Row& row) { return row.cpu || row.memory; });
  const bool has_gpu = any([](const Row& row) { return row.gpu.has_value(); });
  const bool has_network = any([](const Row& row) { return row.received || row.sent; });
  const bool has_times = any([](const Row& row) { return row.step.has_value(); });
  std::size_t num_gpus = 0, ranks = 5;
  for (const Row& row : rows) {
    if (row.node->monitor) num_gpus = std::max(num_gpus, row.node->monitor->gpus.size());
    ranks = std::max(ranks, columns_of(ranks_text(*row.node)));
  }
  return {{"NODE", 4, true, true, 9,
           [](const Row& row) {
             return row.node->node_rank ? std::to_string(*row.node->node_rank) : "–";
           }},
          {"HOST", 8, false, true, 11, [](const Row& row) { return row.node->host; }},
          {"STATE", 9, false, true, 10,
           [](const Row& row) { return (row.is_slow ? "▲ " : "") + state_text(*row.node); }},
          {"RANKS", ranks, true, true, 3, [](const Row& row) { return ranks_text(*row.node); }},
          {"CPU", 6, true, has_cpu, 6, [](const Row& row) { return percent_or(row.cpu); }},
          {"MEM", 6, true, has_cpu, 5, [](const Row& row) { return percent_or(row.memory); }},
          {"GPU", 6, true, has_gpu, 7, [](const Row& row) { return percent_or(row.gpu); }},
          {"EACH", std::max<std::size_t>(num_gpus, 4), false, has_gpu && num_gpus > 1, 1, gpu_bars},
          {"IN", 8, true, has_network, 4, [](const Row& row) { return rate_or(row.received); }},
          {"OUT", 8, true, has_network, 4, [](const Row& row) { return rate_or(row.sent); }},
          {"STEP", 7, true, has_times, 2, [](const Row& row) { return time_or(row.step); }},
          {"OWN", 7, true, has_times, 8, [](const Row& row) { return time_or(row.own); }}};
}

std::size_t width_of_all(const std::vector<Column>& columns) {
  std::size_t all = 0;
  for (const Column& column : columns) all += column.width + 1;
  return all == 0 ? 0 : all - 1;
}

// Those for which there is room; hosts have what is left.
std::vector<Column> fitting(std::vector<Column> columns, const std::vector<Row>& rows,
                            std::size_t width) {
  std::erase_if(columns, [](const Column& column) { return !column.is_there; });
  for (int gone = 1; width_of_all(columns) > width && gone < 9; ++gone) {
    std::erase_if(columns, [gone](const Column& column) { return column.importance == gone; });
  }
  const std::size_t used = width_of_all(columns);
  std::size_t longest = 0;
  for (const Row& row : rows) longest = std::max(longest, columns_of(harmless(row.node->host)));
  for (Column& column : columns) {
    if (column.importance != 11 || used >= width) continue;
    column.width = std::max(column.width, std::min(longest, column.width + width - used));
  }
  return columns;
}

}  // namespace

std::vector<Line> node_lines(const Job& job, NodeOrder order, std::size_t columns) {
  std::vector<Line> lines;
  if (job.nodes.empty()) return lines;
  std::set<std::int64_t> slow;
  for (const std::string& text : job.stragglers) slow.insert(rank_named(text));
  std::vector<Row> rows;
  for (const Node& node : job.nodes) rows.push_back(row_of(node, slow));
  std::stable_sort(rows.begin(), rows.end(), [order](const Row& a, const Row& b) {
    return sort_value(a, order) < sort_value(b, order);
  });
  Line title("NODES", Style::kTitle);
  title.add(concat(" by ", order_name(order)), Style::kDim);
  lines.push_back(title);
  const std::vector<Column> shown_columns = fitting(columns_for(rows), rows, columns);
  const auto add_cell = [](Line& line, const Column& column, std::string_view text, Style style) {
    if (!line.empty()) line.add(" ");
    column.is_right ? line.add_right(text, column.width, style)
                    : line.add_left(text, column.width, style);
  };
  Line head;
  for (const Column& column : shown_columns) add_cell(head, column, column.head, Style::kDim);
  lines.push_back(head);
  for (const Row& row : rows) {
    Line line;
    for (const Column& column : shown_columns) {
      add_cell(line, column, column.text(row), state_style(row));
    }
    lines.push_back(line);
  }
  for (const auto& [host, why] : job.excluded) {
    for (const std::string& part : wrapped(concat(host, " is excluded: ", why), columns, 2)) {
      lines.emplace_back(part, Style::kWarn);
    }
  }
  return lines;
}

}  // namespace ddprun::top
