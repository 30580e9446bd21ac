// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "common/text.h"
#include "ctl/number_texts.h"
#include "ctl/top/picture.h"

namespace ddprun::top {

using ctl::bytes_text, ctl::count_text, ctl::number_text, ctl::percent_text, ctl::rate_text;
using ctl::seconds_text, ctl::whole_text;

namespace {

constexpr char kNotKnown[] = "–";
constexpr double kLastLevel = 7;

// Returns "▁" … "█" for 0 … 7; other levels become the nearest of these.
std::string level_sign(double level) {
  constexpr std::array kSigns = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  return kSigns.at(std::lround(std::clamp(level, 0.0, kLastLevel)));
}

// Draws at most `columns` bars. If there are more values, a bar shows the mean of several.
std::string bars_of(const Series& values, double low, double high, std::size_t columns) {
  std::string bars;
  const std::size_t num_bars = std::min(columns, values.size());
  for (std::size_t bar = 0; bar < num_bars; ++bar) {
    const auto first = values.begin() + bar * values.size() / num_bars;
    const auto end = values.begin() + (bar + 1) * values.size() / num_bars;
    const double mean = std::accumulate(first, end, 0.0) / (end - first);
    // Equal values are drawn in the middle, zeros at the bottom.
    const double alike = high == 0 ? 0 : 0.4;
    bars += level_sign(kLastLevel * (high > low ? (mean - low) / (high - low) : alike));
  }
  return bars;
}

struct Cell {
  Condition condition = kSucceeded;
  std::int64_t number = -1;  // shown before a row that begins here; -1: none
  std::int64_t group = 0;    // in the first cell of a node: how many cells the node has
  double own = -1;           // the rank's own part of a step, in seconds; negative: not known

  void merge(Condition other, double other_own) {
    condition = std::max(condition, other);
    own = std::max(own, other_own);
  }
};

// Columns of the table of nodes. If they don't fit, those of importance 1 go first; 9 and more
// stay.
constexpr std::size_t kHost = 1, kState = 2, kRanks = 3, kEach = 7;
constexpr std::array kHeads = {"NODE", "HOST", "STATE", "RANKS", "CPU", "MEM",
                               "GPU",  "EACH", "IN",    "OUT",   "OWN"};
constexpr std::array<std::size_t, kHeads.size()> kLeastWidths = {4, 8, 9, 5, 6, 6, 6, 4, 8, 8, 7};
constexpr std::array kImportance = {9, 11, 10, 3, 6, 5, 7, 1, 4, 4, 8};

struct Row {
  std::array<std::string, kHeads.size()> texts = {};
  char style = kDim;
  double sort_value = std::numeric_limits<double>::infinity();  // rows with small values come first
};

class JobPanel {
 public:
  JobPanel(const Job& job, const JobHistory& history, std::size_t columns)
      : job_(job), said_(job.said), history_(history), columns_(columns) {}

  Lines over() {
    const std::int64_t code = whole(said_, "exit_code"), preempted = whole(said_, "preemptions");
    Lines facts = {code == 0 ? concat(kGood, "ended well") : concat(kBad, "exit code ", code)};
    const std::string began = text(said_, "began"), first = text(said_, "first_failure");
    if (!began.empty()) facts.push_back("began " + began);
    facts.push_back("ended " + text(said_, "ended"));
    facts.push_back(concat("rounds ", whole(said_, "rounds")));
    facts.push_back(concat("failures ", whole(said_, "failures")));
    facts.push_back(concat("node losses ", whole(said_, "node_losses")));
    if (preempted > 0) facts.push_back(concat("preemptions ", preempted));
    add_facts(facts);
    add_text(kBad, 6, text(said_, "reason"));
    if (!first.empty()) add_text(kPlain, 4, "first: " + first);
    add_text(kPlain, 6, text(said_, "summary"));
    const std::string names = names_text(texts(said_, "nodes"), 16);
    add_text(kDim, 6, concat(count_text(whole(said_, "num_nodes"), "node"), ": ", names));
    return std::move(lines_);
  }

  Lines live(NodeOrder order, std::size_t cell_rows, std::size_t rows) {
    const std::string waits = waits_text(job_);
    if (!waits.empty() || !hangs()) {
      add_text(waits.empty() ? kGood : kWarn, 3,
               waits.empty() ? "no hang is known, and no node is waited for" : waits);
    }
    add_text(kBad, 4, text(said_, "reason"));
    add_hang();
    add_figures();
    add_training();
    add_ranks(cell_rows);
    add_restarts();
    add_nodes(order);
    add_machines();
    if (lines_.size() + sections_.size() <= rows) {
      for (std::size_t i = sections_.size(); i-- > 0;) {
        lines_.insert(lines_.begin() + sections_[i], "");
      }
    }
    return std::move(lines_);
  }

 private:
  template <typename... Parts>
  void add(const Parts&... parts) {
    lines_.push_back(concat(parts...));
  }
  // Adds the text on at most `most` lines.
  void add_text(char style, std::size_t most, const std::string& text) {
    add_wrapped(lines_, text, columns_, style, most);
  }
  template <typename... Parts>
  void begin_section(const char* title, const Parts&... parts) {
    sections_.push_back(lines_.size());
    add(kTitle, title, parts...);
  }

  // Adds the facts with " · " between them, on as many lines as needed.
  void add_facts(const Lines& facts) {
    constexpr std::size_t kBetween = 3;
    std::string line;
    for (const std::string& fact : facts) {
      if (!line.empty() && columns_of(line) + kBetween + columns_of(fact) > columns_) {
        add(std::exchange(line, ""));
      }
      line += (line.empty() ? "" : concat(kDim, " · ", kPlain)) + fact;
    }
    if (!line.empty()) add(line);
  }

  bool hangs() const {
    return !at(said_, "hang").is_null() && whole(said_, "hang", "round") == whole(said_, "round");
  }

  void add_hang() {
    if (!hangs()) return;
    constexpr std::size_t kMost = 8;
    add_text(kBad, 4, text(said_, "hang", "text"));
    const Lines ranks = texts(said_, "hang", "lines");
    for (std::size_t i = 0; i < std::min(kMost, ranks.size()); ++i) {
      add_text(kPlain, 2, "  " + ranks[i]);
    }
    if (ranks.size() > kMost) add(kDim, "  and ", ranks.size() - kMost, " more");
  }

  // Makes "failures 2/3", with a style that shows if some or all are used up. "1/0" would be no
  // share.
  std::string budget(const char* name, const char* used_path, const char* most_path) const {
    const std::int64_t used = whole(said_, used_path), most = whole(said_, most_path);
    const char style = used == 0 ? kPlain : most > 0 && used >= most ? kBad : kWarn;
    return concat(style, name, ' ', whole_text(used),
                  most > 0   ? concat("/", whole_text(most))
                  : used > 0 ? ", none allowed"
                             : "");
  }

  void add_figures() {
    const std::int64_t least = whole(said_, "min_nodes"), most = whole(said_, "max_nodes");
    Lines facts = {concat("round ", whole(said_, "round")),
                   concat(num_here(job_), " of ", least == most ? "" : concat(least, "–"),
                          count_text(most, "node"))};
    const json::array& rounds = list(said_, "rounds");
    if (text(said_, "phase") != "forming" && !rounds.empty()) {
      facts.push_back(count_text(whole(rounds.back(), "world_size"), "rank"));
    }
    if (const auto ettr = number(said_, "ettr")) facts.push_back("ETTR " + percent_text(*ettr));
    facts.push_back(budget("failures", "failures", "max_restarts"));
    facts.push_back(budget("node losses", "node_losses", "max_node_losses"));
    if (whole(said_, "preemptions") > 0) {
      facts.push_back(budget("preemptions", "preemptions", "max_preemptions"));
    }
    if (whole(said_, "rounds_without_progress") > 0 && whole(said_, "no_progress_restarts") > 0) {
      facts.push_back(
          budget("rounds without a step", "rounds_without_progress", "no_progress_restarts"));
    }
    add_facts(facts);
  }

  // Adds "loss        2.31  ▅▄▃▂▂  2.31 to 4.12", if the value is known.
  void add_series(Figure figure, const char* name, std::string (*text)(double),
                  const std::string& more = "") {
    constexpr std::size_t kNow = 21, kMostBars = 60, kBehind = 22;  // columns
    const bool is_nan = figure == kLoss && whole(said_, "training", "nan_ranks") > 0;
    const bool is_wide = columns_ >= 60;
    if (!job_.figures[figure] && !is_nan) return;
    const std::string now = job_.figures[figure] ? text(*job_.figures[figure]) : "NaN";
    std::string line = concat(kDim, left(name, 11), kBold, left(now, 10));
    const std::size_t used = kNow + (is_wide ? kBehind : 1);
    const Series& series = history_[figure];
    if (series.size() >= 2 && columns_ > used + 4) {
      const auto [low, high] = std::ranges::minmax(series);
      line += concat(kInfo, ' ', bars_of(series, low, high, std::min(columns_ - used, kMostBars)));
      if (is_wide && low < high) line += concat(kDim, ' ', text(low), " to ", text(high));
    }
    if (!more.empty() && columns_of(line) + 2 + columns_of(more) <= columns_) {
      line += concat(kPlain, "  ", more);
    }
    add(line);
  }

  void add_training() {
    if (at(said_, "training").is_null()) return;
    const std::string phase = text(said_, "training", "phase");
    begin_section("TRAINING", kBold, " step ", whole_text(whole(said_, "training", "step")), kPlain,
                  phase.empty() ? "" : concat(" (", phase, ")"));
    add_series(kLoss, "loss", number_text);
    const std::int64_t num_nan = whole(said_, "training", "nan_ranks");
    if (num_nan > 0) add_text(kBad, 2, "the loss is no number on " + count_text(num_nan, "rank"));
    add_series(kSamples, "samples/s", number_text);
    add_series(kStepTime, "step time", seconds_text);
    Lines facts;
    const std::string framework = text(said_, "training", "framework");
    if (!framework.empty()) facts.push_back(framework);
    if (const auto skipped = whole(said_, "training", "skipped_steps"); skipped > 0) {
      facts.push_back(count_text(skipped, "skipped step"));
    }
    if (const json::value& peak = at(said_, "training", "gpu_memory_peak"); !peak.is_null()) {
      facts.push_back(concat("GPU memory at most ", bytes_text(number(peak, "bytes").value_or(0)),
                             " (rank ", whole(peak, "rank"), ")"));
    }
    for (const auto& [name, what] :
         {std::pair{"step_seconds", ""}, std::pair{"exposed_seconds", "communication not hidden "},
          std::pair{"loader_seconds", "waits for data "}}) {
      const json::value& part = at(said_, "training", "step_parts", name);
      if (part.is_null()) continue;
      const std::string mean = seconds_text(number(part, "mean").value_or(0));
      facts.push_back(concat(what, *what == '\0' ? "worst step " : mean + ", worst ",
                             seconds_text(number(part, "worst").value_or(0)), " (rank ",
                             whole(part, "worst_rank"), ")"));
    }
    add_facts(facts);
  }

  // Returns the median of the ranks' own parts of a step, in seconds; 0: no rank reports it.
  double median_own() const {
    std::vector<double> own;
    for (const Node& node : job_.nodes) {
      for (const RankTime& time : node.times) own.push_back(time.own_seconds);
    }
    return median_of(std::move(own)).value_or(0);
  }

  // The median is at a third of the height, so that double and half of it look different.
  std::string height_of(double own) const {
    constexpr double kMedianLevel = 2;
    return level_sign(median_ > 0 ? kMedianLevel * own / median_ : 0);
  }

  // Makes the cells. `num_nodes` 0: one for each rank, in groups; else one for this many nodes.
  // Then it looks only at ranks that differ from their node, as there may be very many.
  std::vector<Cell> cells_of(std::size_t num_nodes) const {
    std::vector<Cell> cells;
    for (std::size_t i = 0; i < job_.nodes.size(); ++i) {
      const Node& node = job_.nodes[i];
      const std::size_t first = cells.size();
      for (std::int64_t local = 0; num_nodes == 0 && local < node.num_workers; ++local) {
        const std::int64_t rank = node.first_rank ? *node.first_rank + local : -1;
        cells.push_back({node.condition, rank, local == 0 ? node.num_workers : 0});
      }
      if (num_nodes > 0 && i % num_nodes == 0) cells.emplace_back();
      if (num_nodes == 1) cells.back().number = i;
      if (num_nodes > 0) cells.back().merge(node.condition, -1);
      const auto merge = [&](std::int64_t rank, Condition condition, double own) {
        if (!node.has(rank)) return;
        Cell& cell = num_nodes == 0 ? cells[first + rank - *node.first_rank] : cells.back();
        cell.merge(condition, own);
      };
      for (const std::int64_t rank : job_.slow) {
        if (node.condition == kRunning) merge(rank, kSlow, -1);
      }
      merge(job_.failed, kFailed, -1);
      for (const RankTime& time : node.times) merge(time.rank, node.condition, time.own_seconds);
    }
    return cells;
  }

  // With gaps, the cells of a node stay on one row, unless a row can't hold them.
  Lines rows_of(const std::vector<Cell>& cells, bool has_gaps) const {
    constexpr std::size_t kLabel = 7;
    constexpr double kWarnFrom = 2;  // times the median
    Lines rows;
    std::size_t used = columns_;  // of the last row
    for (const Cell& cell : cells) {
      const std::size_t group = has_gaps ? cell.group : 0;
      const std::size_t gap = group > 0 && used > kLabel ? 1 : 0;
      if (used + std::clamp<std::size_t>(gap + group, 1, columns_ - kLabel) > columns_) {
        const std::string number = cell.number < 0 ? "" : std::to_string(cell.number);
        rows.push_back(concat(kDim, right(number, kLabel - 1), ' '));
        used = kLabel;
      } else {
        rows.back().append(gap, ' ');
        used += gap;
      }
      const ConditionText& text = kConditions[cell.condition];
      const bool has_height = cell.condition == kRunning && cell.own >= 0;
      const bool is_high = has_height && median_ > 0 && cell.own >= kWarnFrom * median_;
      rows.back() += is_high ? kWarn : text.style;
      rows.back() += has_height ? height_of(cell.own) : text.sign;
      ++used;
    }
    return rows;
  }

  // Makes "16: 15 running, 1 ▲ straggling".
  std::string conditions_text(std::int64_t num_ranks) const {
    std::array<std::int64_t, kConditions.size()> counts{};
    for (const Node& node : job_.nodes) {
      const std::int64_t failed = node.has(job_.failed);
      const auto slow = std::ranges::count_if(job_.slow, [&](std::int64_t rank) {
        return node.condition == kRunning && rank != job_.failed && node.has(rank);
      });
      counts[kSlow] += slow;
      counts[kFailed] += failed;
      counts[node.condition] += node.num_workers - slow - failed;
    }
    std::string line = whole_text(num_ranks) + ':';
    const char* between = " ";
    for (std::size_t i = counts.size(); i-- > 0;) {
      if (counts[i] == 0) continue;
      const ConditionText& text = kConditions[i];
      line += concat(kPlain, std::exchange(between, ", "), whole_text(counts[i]), ' ', text.style,
                     i == kRunning ? "" : concat(text.sign, ' '), text.words);
    }
    if (job_.num_hidden == 0) return line;
    return concat(line, kPlain, "; ", job_.num_hidden, " more nodes not shown");
  }

  void add_slow_ranks() {
    constexpr std::size_t kMost = 5, kNamed = 3;  // lines; ranks
    constexpr double kNoticed = 1.1;              // times the median
    const std::size_t end = lines_.size() + kMost;
    const Lines stragglers = texts(said_, "stragglers");
    for (std::size_t i = 0; i < stragglers.size(); ++i) {
      if (lines_.size() + 1 >= end && stragglers.size() > kMost) {
        add(kWarn, "▲ and ", stragglers.size() - i, " more");
        break;
      }
      add_text(kWarn, 2, "▲ " + stragglers[i]);
    }
    if (lines_.size() >= end) return;
    std::vector<std::pair<RankTime, std::string>> times;
    for (const Node& node : job_.nodes) {
      for (const RankTime& time : node.times) {
        if (time.own_seconds >= kNoticed * median_) times.emplace_back(time, node.host);
      }
    }
    std::ranges::sort(times, {}, [](const auto& each) {
      return std::pair(-each.first.own_seconds, each.first.rank);
    });
    times.resize(std::min(kNamed, times.size()));
    std::string line;
    for (const auto& [time, host] : times) {
      const std::string one =
          concat(line.empty() ? concat(kDim, "slowest: ") : ", ", kBold, "rank ", time.rank, kPlain,
                 " (", host, ") ", seconds_text(time.own_seconds), " of its own");
      if (line.empty() || columns_of(line) + columns_of(one) <= columns_) line += one;
    }
    if (!line.empty()) add(line);
  }

  void add_ranks(std::size_t most_rows) {
    constexpr std::int64_t kMostCells = 8'192;
    std::int64_t num_ranks = 0;
    for (const Node& node : job_.nodes) num_ranks += node.num_workers;
    if (num_ranks == 0) return;
    Lines rows;
    const auto fits = [&] { return !rows.empty() && rows.size() <= most_rows; };
    for (const bool has_gaps : {true, false}) {
      if (num_ranks <= kMostCells && !fits()) rows = rows_of(cells_of(0), has_gaps);
    }
    std::string legend;
    for (std::size_t nodes = 1; !fits() && nodes <= 2 * job_.nodes.size(); nodes *= 2) {
      rows = rows_of(cells_of(nodes), false);
      legend = nodes == 1 ? "each cell is a node, its slowest rank"
                          : concat("each cell is ", nodes, " nodes, their slowest rank");
    }
    if (median_ > 0) {
      legend += concat(legend.empty() ? "" : "; ", "height: own part of a step, ",
                       height_of(median_), " is the median, ", seconds_text(median_));
    }
    begin_section("RANKS ", kPlain, conditions_text(num_ranks));
    append(lines_, rows);
    if (!legend.empty()) add(kDim, legend);
    add_slow_ranks();
  }

  // Adds the restarts, the newest first.
  void add_restarts() {
    constexpr std::ptrdiff_t kMost = 6;
    const json::array& rounds = list(said_, "rounds");
    if (rounds.size() < 2) return;
    begin_section("RESTARTS", kPlain, ' ', std::max<std::int64_t>(whole(said_, "round") - 1, 0));
    const auto first = rounds.rbegin() + (text(rounds.back(), "cause").empty() ? 1 : 0);
    for (auto round = first; round != rounds.rend(); ++round) {
      if (round - first == kMost) {
        return add(kDim, "  and ", rounds.rend() - round, " earlier ones");
      }
      double seconds = 0;
      if (const json::object* spent = at(*round, "seconds").if_object()) {
        for (const auto& each : *spent) seconds += number(each.value()).value_or(0);
      }
      const std::int64_t last = whole(*round, "last_step");
      const bool has_steps = last >= 0 && last >= whole(*round, "first_step");
      const std::string cause = text(*round, "cause");
      add_text(kPlain, 3,
               concat("round ", whole(*round, "round"), " ended after ", seconds_text(seconds),
                      has_steps ? ", to step " + whole_text(last) : "", ": ",
                      cause.empty() ? "all workers succeeded" : cause));
    }
  }

  Row row_of(const Node& node, NodeOrder order) const {
    std::optional<double> own, traffic;
    for (const RankTime& time : node.times) own = std::max(own.value_or(0), time.own_seconds);
    if (node.received || node.sent) traffic = node.received.value_or(0) + node.sent.value_or(0);
    const std::optional<double> gpu = mean_of(node.gpus);
    std::string each;
    for (const auto& use : node.gpus) each += use ? level_sign(*use * kLastLevel) : "?";
    const ConditionText& condition = kConditions[node.condition];
    const bool is_slow =
        std::ranges::any_of(job_.slow, [&node](std::int64_t rank) { return node.has(rank); });
    const bool has_words =
        node.condition == kSpare || node.condition == kSucceeded || node.condition == kIdle;
    const std::string state = node.condition == kLost ? "LOST"
                              : has_words             ? condition.words
                                                      : node.phase;
    const std::int64_t first = node.first_rank.value_or(0), last = first + node.num_workers - 1;
    const std::string ranks = node.num_workers == 0 ? kNotKnown
                              : !node.first_rank    ? concat(node.num_workers, "×")
                              : first == last       ? std::to_string(last)
                                                    : concat(first, "-", last);
    const auto said = [](const std::optional<double>& value, std::string (*text)(double)) {
      return value ? text(*value) : kNotKnown;
    };
    Row row{{node.node_rank ? std::to_string(*node.node_rank) : kNotKnown, node.host,
             (is_slow ? "▲ " : "") + state, ranks, said(node.cpu, percent_text),
             said(node.memory, percent_text), said(gpu, percent_text),
             node.gpus.size() > 1 ? each : kNotKnown, said(node.received, rate_text),
             said(node.sent, rate_text), said(own, seconds_text)}};
    const bool is_running = node.condition == kRunning;
    row.style = !is_running ? condition.style : is_slow ? kWarn : kPlain;
    const std::array<std::optional<double>, 5> values = {0, node.cpu, gpu, traffic, own};
    if (values[order]) row.sort_value = order == kByGpu ? *values[order] : -*values[order];
    return row;
  }

  // Returns the columns' widths; 0: the column isn't shown. Hosts get the remaining room.
  std::array<std::size_t, kHeads.size()> widths_of(const std::vector<Row>& rows) const {
    std::array<std::size_t, kHeads.size()> widths{}, longest = kLeastWidths;
    for (std::size_t i = 0; i < kHeads.size(); ++i) {
      bool is_there = i <= kRanks;
      for (const Row& row : rows) {
        is_there = is_there || row.texts[i] != kNotKnown;
        longest[i] = std::max(longest[i], columns_of(row.texts[i]));
      }
      if (is_there) widths[i] = i == kHost || i == kState ? kLeastWidths[i] : longest[i];
    }
    const auto used = [&widths] {
      const auto num_gone = std::ranges::count(widths, 0U);
      return std::accumulate(widths.begin(), widths.end(), widths.size() - 1 - num_gone);
    };
    for (int gone = 1; used() > columns_ && gone < 9; ++gone) {
      for (std::size_t i = 0; i < widths.size(); ++i) {
        if (kImportance[i] == gone) widths[i] = 0;
      }
    }
    const std::size_t left_over = columns_ - std::min(used(), columns_);
    widths[kHost] = std::min(longest[kHost], widths[kHost] + left_over);
    return widths;
  }

  void add_nodes(NodeOrder order) {
    if (job_.nodes.empty()) return;
    std::vector<Row> rows;
    for (const Node& node : job_.nodes) rows.push_back(row_of(node, order));
    std::ranges::stable_sort(rows, {}, &Row::sort_value);
    const auto widths = widths_of(rows);
    Row head;
    std::ranges::copy(kHeads, head.texts.begin());
    rows.insert(rows.begin(), head);
    begin_section("NODES", kDim, " by ", order_name(order));
    for (const Row& row : rows) {
      std::string line(1, row.style);
      for (std::size_t i = 0; i < widths.size(); ++i) {
        if (widths[i] == 0) continue;
        const bool is_left = i == kHost || i == kState || i == kEach;
        line += (i > 0 ? " " : "") + (is_left ? left : right)(row.texts[i], widths[i]);
      }
      add(line);
    }
    if (const json::object* excluded = at(said_, "excluded").if_object()) {
      for (const auto& [host, why] : *excluded) {
        add_text(kWarn, 2, concat(harmless(host), " is excluded: ", text(why)));
      }
    }
  }

  void add_machines() {
    if (!job_.figures[kNetwork]) return;
    double received = 0, sent = 0;
    std::vector<double> gpus;
    for (const Node& node : job_.nodes) {
      received += node.received.value_or(0);
      sent += node.sent.value_or(0);
      for (const auto& use : node.gpus) {
        if (use) gpus.push_back(*use);
      }
    }
    begin_section("MACHINES");
    add_series(kGpu, "GPU mean", percent_text,
               gpus.size() > 1 ? "least " + percent_text(std::ranges::min(gpus)) : "");
    add_series(kCpu, "CPU mean", percent_text);
    add_series(kNetwork, "network", rate_text,
               concat("in ", rate_text(received), ", out ", rate_text(sent)));
  }

  const Job& job_;
  const json::value& said_;
  const JobHistory& history_;
  const std::size_t columns_;
  const double median_ = median_own();
  Lines lines_;
  std::vector<std::size_t> sections_;  // lines at which sections begin
};

}  // namespace

Lines job_lines(const Job& job, const JobHistory& history, NodeOrder order, std::size_t columns,
                std::size_t cell_rows, std::size_t rows) {
  JobPanel panel(job, history, columns);
  return job.is_over ? panel.over() : panel.live(order, cell_rows, rows);
}

}  // namespace ddprun::top
