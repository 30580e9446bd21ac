// SPDX-License-Identifier: Apache-2.0
#include "ctl/report/charts.h"

#include <algorithm>
#include <array>

#include "common/log.h"
#include "ctl/report/bar_plot.h"
#include "ctl/report/grid_chart.h"
#include "ctl/report/heat_plot.h"
#include "ctl/report/numbers.h"

namespace ddprun::report {
namespace {

constexpr std::size_t kMostBars = 24;  // of rounds
constexpr std::size_t kFewNodes = 8, kFewRanks = 16;

constexpr std::array<Paint, kNumPhases> kPhasePaints = {
    "grey-fill", "quiet", "green-fill", "blue-fill", "amber-fill", "red", "red-fill"};

using Sign = LegendEntry::Sign;

class Maker {
 public:
  Maker(const Record& record, const Facts& facts)
      : record_(record), readings_(record.readings), facts_(facts) {
    seconds_ = std::max(record.last_word, 1e-3);
    for (std::size_t round = 1; round < facts.rounds.size(); ++round) {
      if (const auto began = facts.rounds[round].facts->began) marks_.push_back(*began);
    }
  }

  std::vector<Chart> charts() {
    time_spent();
    timeline();
    training();
    steps();
    network();
    machines();
    gpus();
    return std::move(charts_);
  }

 private:
  std::vector<BarPart> parts_of(const PhaseSeconds& seconds, double begin) const {
    std::vector<BarPart> parts;
    for (std::size_t phase = 0; phase < kNumPhases; ++phase) {
      parts.push_back({.paint = phase_paint(phase), .begin = begin, .length = seconds[phase]});
      begin += seconds[phase];
    }
    return parts;
  }

  // The last rounds, and what is left out.
  std::size_t first_bar() const {
    return facts_.rounds.size() > kMostBars ? facts_.rounds.size() - kMostBars : 0;
  }
  std::string left_out() const {
    if (first_bar() == 0) return "";
    return concat(" The last ", kMostBars, " of ", whole_text(facts_.num_rounds), " rounds.");
  }

  void time_spent();
  void timeline();
  void training();
  void epochs();
  void steps();
  void heat_map(const TimeGrid& grid, bool is_own);
  void network();
  void machines();
  void gpus();

  GridChart wanted(const char* id, Section section, const char* title, TextOf text) const {
    GridChart chart;
    chart.id = id;
    chart.section = section;
    chart.title = title;
    chart.text = text;
    chart.seconds = seconds_;
    chart.marks = marks_;
    return chart;
  }
  GridChart of_machines(const char* id, Section section, const char* title, TextOf text) const {
    GridChart chart = wanted(id, section, title, text);
    chart.one = "node";
    chart.names_are_numbers = false;
    chart.most_lines = kFewNodes;
    chart.is_half = true;
    return chart;
  }
  void add(const TimeGrid& grid, const GridChart& wanted) {
    if (!grid.empty()) charts_.push_back(chart_of(grid, wanted));
  }

  const Record& record_;
  const Readings& readings_;
  const Facts& facts_;
  double seconds_ = 0;
  std::vector<double> marks_;
  std::vector<Chart> charts_;
};

void Maker::time_spent() {
  double all = 0;
  for (const double seconds : facts_.phases) all += seconds;
  if (all <= 0) return;
  Chart chart{.id = "time_spent", .section = Section::kTime, .title = "Shares of each phase"};
  std::vector<Bar> bars{
      {.name = "all rounds", .parts = parts_of(facts_.phases, 0), .text = seconds_text(all)}};
  chart.table.heads = {"round"};
  std::vector<std::string> total{"all"};
  for (std::size_t phase = 0; phase < kNumPhases; ++phase) {
    chart.table.heads.emplace_back(kPhaseNames[phase]);
    total.push_back(seconds_text(facts_.phases[phase]));
    if (facts_.phases[phase] <= 0) continue;
    const std::string text = concat(kPhaseNames[phase], " ", seconds_text(facts_.phases[phase]),
                                    ", ", percent_text(facts_.phases[phase] / all));
    chart.legend.push_back({.paint = phase_paint(phase), .sign = Sign::kArea, .text = text});
  }
  constexpr std::size_t kTraining = 3;
  chart.summary =
      concat("Of ", seconds_text(all), ", ", percent_text(facts_.phases[kTraining] / all),
             facts_.has_ledger ? " was training that counted." : " was training.", left_out());
  chart.table.heads.emplace_back("sum");
  total.push_back(seconds_text(all));
  chart.table.rows.push_back(std::move(total));
  for (std::size_t number = first_bar(); number < facts_.rounds.size(); ++number) {
    const RoundSpan& round = facts_.rounds[number];
    std::vector<std::string> cells{whole_text(round.facts->round)};
    for (const double seconds : round.seconds) cells.push_back(seconds_text(seconds));
    cells.push_back(seconds_text(round.length()));
    chart.table.rows.push_back(std::move(cells));
    if (facts_.rounds.size() == 1) break;
    bars.push_back({.name = concat("round ", round.facts->round),
                    .parts = parts_of(round.seconds, 0),
                    .text = seconds_text(round.length())});
  }
  chart.drawing = draw_shares(bars, kWideChart);
  charts_.push_back(std::move(chart));
}

void Maker::timeline() {
  if (facts_.rounds.empty()) return;
  Chart chart{.id = "rounds",
              .section = Section::kRounds,
              .title = "Rounds along the job's time",
              .table = {.heads = {"round", "from", "to", "length"}}};
  std::vector<Bar> bars;
  double end = seconds_;
  for (std::size_t number = first_bar(); number < facts_.rounds.size(); ++number) {
    const RoundSpan& round = facts_.rounds[number];
    const double to = round.begin + round.length();
    end = std::max(end, to);
    bars.push_back({.name = concat("round ", round.facts->round),
                    .parts = parts_of(round.seconds, round.begin),
                    .text = {}});
    chart.table.rows.push_back({whole_text(round.facts->round), clock_text(round.begin),
                                clock_text(to), seconds_text(round.length())});
  }
  for (std::size_t phase = 0; phase < kNumPhases; ++phase) {
    if (facts_.phases[phase] <= 0) continue;
    chart.legend.push_back({.paint = phase_paint(phase),
                            .sign = Sign::kArea,
                            .text = std::string(kPhaseNames[phase])});
  }
  chart.summary = concat(count_text(facts_.num_rounds, "round"), " in ", seconds_text(seconds_),
                         ".", left_out());
  chart.drawing = draw_timeline(bars, end, kWideChart);
  charts_.push_back(std::move(chart));
}

void Maker::training() {
  GridChart loss = wanted("loss", Section::kTraining, "Loss", number_text);
  loss.from_zero = false;
  loss.names_worst = false;
  add(readings_.loss, loss);
  epochs();
  if (readings_.samples.empty()) return;
  charts_.push_back(sum_chart_of(
      readings_.samples,
      wanted("throughput", Section::kTraining, "Samples per second, all ranks", number_text)));
}

void Maker::epochs() {
  if (!record_.train || record_.train->epochs.empty()) return;
  const std::vector<Epoch>& epochs = record_.train->epochs;
  const auto runs = [&](std::optional<double> Epoch::*part) {
    Runs points(1);
    for (const Epoch& epoch : epochs) {
      if (!(epoch.*part)) {
        points.emplace_back();
      } else {
        points.back().push_back({static_cast<double>(epoch.epoch), *(epoch.*part)});
      }
    }
    return points;
  };
  const auto text = [](std::optional<double> value, TextOf text_of) {
    return value ? text_of(*value) : std::string("–");
  };
  LinePlot plot{
      .width = kHalfChart,
      .height = 170,
      .x_low = static_cast<double>(epochs.front().epoch),
      .x_high = static_cast<double>(epochs.back().epoch),
      .x_is_time = false,
      .lines = {{.paint = kBlue, .runs = runs(&Epoch::train_loss)},
                {.paint = series_paint(1), .dashed = true, .runs = runs(&Epoch::test_loss)}}};
  const Epoch& last = epochs.back();
  Chart loss{.id = "epoch_loss",
             .section = Section::kTraining,
             .title = "Loss by epoch",
             .summary = concat("After epoch ", last.epoch, ": training ",
                               text(last.train_loss, number_text), ", test ",
                               text(last.test_loss, number_text), "."),
             .legend = {{.paint = kBlue, .text = "training"},
                        {.paint = series_paint(1), .sign = Sign::kDashes, .text = "test"}},
             .drawing = draw(plot),
             .table = {.heads = {"epoch", "training loss", "test loss"}},
             .is_half = true};
  plot.lines = {{.paint = kGreen, .runs = runs(&Epoch::test_accuracy)}};
  plot.y_text = percent_text;
  plot.from_zero = false;
  double best = 0;
  for (const Epoch& epoch : epochs) best = std::max(best, epoch.test_accuracy.value_or(0));
  Chart accuracy{
      .id = "epoch_accuracy",
      .section = Section::kTraining,
      .title = "Test accuracy by epoch",
      .summary = concat("After epoch ", last.epoch, ": ", text(last.test_accuracy, percent_text),
                        ", best ", percent_text(best), "."),
      .drawing = draw(plot),
      .table = {.heads = {"epoch", "test accuracy", "samples per second"}},
      .is_half = true};
  const std::size_t step = epochs.size() / 200 + 1;
  for (std::size_t number = 0; number < epochs.size(); number += step) {
    const Epoch& epoch = epochs[number];
    const std::string name = whole_text(epoch.epoch);
    loss.table.rows.push_back(
        {name, text(epoch.train_loss, number_text), text(epoch.test_loss, number_text)});
    accuracy.table.rows.push_back({name, text(epoch.test_accuracy, percent_text),
                                   text(epoch.samples_per_second, number_text)});
  }
  charts_.push_back(std::move(loss));
  charts_.push_back(std::move(accuracy));
}

void Maker::steps() {
  GridChart step = wanted("step_time", Section::kSteps, "Time of a step, by rank", seconds_text);
  step.most_lines = kFewRanks;
  step.without_peaks = true;
  add(readings_.step, step);
  GridChart own = wanted("own_time", Section::kSteps,
                         "Of it a rank's own: without waits for others", seconds_text);
  own.most_lines = kFewRanks;
  own.without_peaks = true;
  add(readings_.own, own);
  const bool has_own = !readings_.own.empty();
  const TimeGrid& grid = has_own ? readings_.own : readings_.step;
  if (grid.rows().size() > kFewRanks) heat_map(grid, has_own);
}

void Maker::heat_map(const TimeGrid& grid, bool is_own) {
  const std::vector<std::size_t> order = rows_in_order(grid);
  HeatMap map = draw_heat_map(grid, order, kWideChart, seconds_, seconds_text);
  Chart chart{.id = "step_heat",
              .section = Section::kSteps,
              .title = is_own ? "A rank's own time in a step, each rank over time"
                              : "Time of a step, each rank over time",
              .summary = concat(count_text(static_cast<std::int64_t>(order.size()), "rank"),
                                " from top to bottom; the stronger the colour, the longer."),
              .drawing = std::move(map.drawing),
              .table = {.heads = {"rank", "mean", "least", "most", "at"}}};
  if (map.rows_of_line > 1) {
    chart.summary +=
        concat(" Each line is ", map.rows_of_line, " ranks, and shows the slowest of them.");
  }
  constexpr std::size_t kMostTableRows = 100;
  std::vector<std::size_t> slowest = order;
  std::stable_sort(slowest.begin(), slowest.end(), [&](std::size_t a, std::size_t b) {
    return grid.rows()[a].mean() > grid.rows()[b].mean();
  });
  if (slowest.size() > kMostTableRows) {
    slowest.resize(kMostTableRows);
    chart.table.note = concat("The ", kMostTableRows, " slowest ranks.");
  }
  for (const std::size_t number : slowest) {
    const TimeGrid::Row& row = grid.rows()[number];
    chart.table.rows.push_back({row.name, seconds_text(row.mean()), seconds_text(row.least),
                                seconds_text(row.most), clock_text(row.most_at)});
  }
  charts_.push_back(std::move(chart));
}

void Maker::network() {
  const Section section = Section::kNetwork;
  if (!readings_.received.empty() || !readings_.sent.empty()) {
    GridChart sum = of_machines("network", section, "Network, sum of the nodes", rate_text);
    sum.is_half = false;
    charts_.push_back(
        two_sums_chart_of(readings_.received, "received", readings_.sent, "sent", sum));
  }
  if (readings_.received.rows().size() > 1) {
    add(readings_.received, of_machines("received", section, "Received, by node", rate_text));
    add(readings_.sent, of_machines("sent", section, "Sent, by node", rate_text));
  }
  GridChart again =
      of_machines("retransmits", section, "TCP segments sent again, per second", number_text);
  again.is_half = false;
  add(readings_.retransmits, again);
}

void Maker::machines() {
  GridChart cpu = of_machines("cpu", Section::kMachines, "CPU, share of the machine", percent_text);
  cpu.top = 1;
  add(readings_.cpu, cpu);
  GridChart memory = of_machines("memory", Section::kMachines, "Memory in use", bytes_text);
  memory.is_bytes = true;
  add(readings_.memory, memory);
}

void Maker::gpus() {
  const auto of_gpus = [&](const char* id, const char* title, TextOf text) {
    GridChart chart = of_machines(id, Section::kGpus, title, text);
    chart.one = "GPU";
    return chart;
  };
  GridChart use = of_gpus("gpu_use", "GPUs: time in which a kernel ran", percent_text);
  use.top = 1;
  add(readings_.gpu_use, use);
  GridChart memory = of_gpus("gpu_memory", "GPUs: memory in use", bytes_text);
  memory.is_bytes = true;
  add(readings_.gpu_memory, memory);
  add(readings_.gpu_watts, of_gpus("gpu_power", "GPUs: power",
                                   [](double watts) { return concat(number_text(watts), " W"); }));
  GridChart celsius = of_gpus("gpu_temperature", "GPUs: temperature",
                              [](double value) { return concat(number_text(value), " °C"); });
  celsius.from_zero = false;
  add(readings_.gpu_celsius, celsius);
}

}  // namespace

Paint phase_paint(std::size_t phase) { return kPhasePaints[phase]; }

std::vector<Chart> charts_of(const Record& record, const Facts& facts) {
  return Maker(record, facts).charts();
}

}  // namespace ddprun::report
