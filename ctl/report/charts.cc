// SPDX-License-Identifier: Apache-2.0
#include "ctl/report/charts.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/value.hpp>

#include "common/text.h"
#include "ctl/report/grid_chart.h"

namespace ddprun::report {

namespace json = boost::json;
using ctl::clock_text, ctl::count_text, ctl::percent_text, ctl::seconds_text, ctl::whole_text;

namespace {

constexpr std::size_t kMostBars = 24;  // rounds that are shown
constexpr std::size_t kFewNodes = 8, kFewRanks = 16;

json::object bar_of(const std::string& name, const PhaseSeconds& seconds) {
  json::array parts;
  for (const double each : seconds) parts.push_back(rounded(each));
  return {{"name", name}, {"parts", std::move(parts)}};
}

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
  // `phases` lists those that took time, in the order of the legend.
  json::object bars_plot(json::array bars) const {
    json::array phases;
    for (std::size_t phase = 0; phase < kNumPhases; ++phase) {
      if (facts_.phases[phase] > 0) phases.push_back(phase);
    }
    return {{"kind", "bars"}, {"phases", std::move(phases)}, {"bars", std::move(bars)}};
  }

  // The first round that the bars show, and a text if rounds are left out.
  std::size_t first_bar() const {
    return facts_.rounds.size() > kMostBars ? facts_.rounds.size() - kMostBars : 0;
  }
  std::string left_out() const {
    if (first_bar() == 0) return "";
    return concat(" The last ", kMostBars, " of ", whole_text(facts_.num_rounds), " rounds.");
  }

  void time_spent() {
    double all = 0;
    for (const double seconds : facts_.phases) all += seconds;
    if (all <= 0) return;
    Chart chart{.id = "time_spent", .section = Section::kTime, .title = "Shares of each phase"};
    json::array bars;
    const auto add_bar = [&](const std::string& name, const PhaseSeconds& parts, double length) {
      bars.push_back(bar_of(name, parts));
      bars.back().get_object()["text"] = seconds_text(length);
    };
    add_bar("all rounds", facts_.phases, all);
    chart.table.heads = {"round"};
    std::vector<std::string> total{"all"};
    for (std::size_t phase = 0; phase < kNumPhases; ++phase) {
      chart.table.heads.emplace_back(kPhaseNames[phase]);
      total.push_back(seconds_text(facts_.phases[phase]));
      if (facts_.phases[phase] <= 0) continue;
      chart.legend.push_back(concat(kPhaseNames[phase], " ", seconds_text(facts_.phases[phase]),
                                    ", ", percent_text(facts_.phases[phase] / all)));
    }
    constexpr std::size_t kTraining = phase_index("running");
    chart.summary = concat(percent_text(facts_.phases[kTraining] / all), " of ", seconds_text(all),
                           !facts_.tells_steps ? " was the workers' run; none told its steps."
                           : facts_.has_ledger ? " was training that counted."
                                               : " was training.",
                           left_out());
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
      add_bar(concat("round ", round.facts->round), round.seconds, round.length());
    }
    chart.plot = bars_plot(std::move(bars));
    charts_.push_back(std::move(chart));
  }

  void timeline() {
    if (facts_.rounds.empty()) return;
    Chart chart{.id = "rounds",
                .section = Section::kRounds,
                .title = "Rounds along the job's time",
                .table = {.heads = {"round", "from", "to", "length"}}};
    json::array bars;
    double end = seconds_;
    for (std::size_t number = first_bar(); number < facts_.rounds.size(); ++number) {
      const RoundSpan& round = facts_.rounds[number];
      const double to = round.begin + round.length();
      end = std::max(end, to);
      bars.push_back(bar_of(concat("round ", round.facts->round), round.seconds));
      bars.back().get_object()["begin"] = rounded(round.begin);
      chart.table.rows.push_back({whole_text(round.facts->round), clock_text(round.begin),
                                  clock_text(to), seconds_text(round.length())});
    }
    for (std::size_t phase = 0; phase < kNumPhases; ++phase) {
      if (facts_.phases[phase] > 0) chart.legend.emplace_back(kPhaseNames[phase]);
    }
    chart.summary = concat(count_text(facts_.num_rounds, "round"), " in ", seconds_text(seconds_),
                           ".", left_out());
    chart.plot = bars_plot(std::move(bars));
    chart.plot["high"] = end;
    charts_.push_back(std::move(chart));
  }

  void training() {
    GridChart loss = wanted("loss", Section::kTraining, "Loss", kNumber);
    loss.from_zero = false;
    loss.names_worst = false;
    add(readings_.loss, loss);
    epochs();
    if (readings_.samples.empty()) return;
    charts_.push_back(sum_chart_of(
        readings_.samples,
        wanted("throughput", Section::kTraining, "Samples per second, all ranks", kNumber)));
  }

  void epochs() {
    if (!record_.train || record_.train->epochs.empty()) return;
    const std::vector<Epoch>& epochs = record_.train->epochs;
    const auto values = [&](std::optional<double> Epoch::*part) {
      json::array each;
      for (const Epoch& epoch : epochs) {
        each.push_back(epoch.*part ? json::value(rounded(*(epoch.*part))) : json::value(nullptr));
      }
      return each;
    };
    const auto text = [](std::optional<double> value, const Unit& unit) {
      return value ? unit.text(*value) : std::string("–");
    };
    json::array numbers;
    for (const Epoch& epoch : epochs) numbers.push_back(epoch.epoch);
    const auto plot = [&](const Unit& unit, bool from_zero, json::array lines) -> json::object {
      return {{"kind", "lines"},
              {"unit", unit.name},
              {"x_is_time", false},
              {"x_low", epochs.front().epoch},
              {"x_high", epochs.back().epoch},
              {"from_zero", from_zero},
              {"x", numbers},
              {"lines", std::move(lines)}};
    };
    const Epoch& last = epochs.back();
    Chart loss{
        .id = "epoch_loss",
        .section = Section::kTraining,
        .title = "Loss by epoch",
        .summary = concat("After epoch ", last.epoch, ": training ", text(last.train_loss, kNumber),
                          ", test ", text(last.test_loss, kNumber), "."),
        .legend = {"training", "test"},
        .plot = plot(kNumber, true,
                     {json::object{{"y", values(&Epoch::train_loss)}},
                      json::object{{"y", values(&Epoch::test_loss)}, {"dashed", true}}}),
        .table = {.heads = {"epoch", "training loss", "test loss"}},
        .is_half = true};
    double best = 0;
    for (const Epoch& epoch : epochs) best = std::max(best, epoch.test_accuracy.value_or(0));
    Chart accuracy{
        .id = "epoch_accuracy",
        .section = Section::kTraining,
        .title = "Test accuracy by epoch",
        .summary = concat("After epoch ", last.epoch, ": ", text(last.test_accuracy, kPercent),
                          ", best ", percent_text(best), "."),
        .plot =
            plot(kPercent, false, json::array{json::object{{"y", values(&Epoch::test_accuracy)}}}),
        .table = {.heads = {"epoch", "test accuracy", "samples per second"}},
        .is_half = true};
    const std::size_t step = epochs.size() / 200 + 1;
    for (std::size_t number = 0; number < epochs.size(); number += step) {
      const Epoch& epoch = epochs[number];
      const std::string name = whole_text(epoch.epoch);
      loss.table.rows.push_back(
          {name, text(epoch.train_loss, kNumber), text(epoch.test_loss, kNumber)});
      accuracy.table.rows.push_back(
          {name, text(epoch.test_accuracy, kPercent), text(epoch.samples_per_second, kNumber)});
    }
    charts_.push_back(std::move(loss));
    charts_.push_back(std::move(accuracy));
  }

  void steps() {
    GridChart step = wanted("step_time", Section::kSteps, "Time of a step, by rank", kSeconds);
    step.most_lines = kFewRanks;
    step.without_peaks = true;
    add(readings_.step, step);
    GridChart own = wanted("own_time", Section::kSteps,
                           "A rank's own part of a step: without waits for others", kSeconds);
    own.most_lines = kFewRanks;
    own.without_peaks = true;
    add(readings_.own, own);
    GridChart loader = wanted("loader_time", Section::kSteps, "Wait for data in a step", kSeconds);
    loader.most_lines = kFewRanks;
    add(readings_.loader, loader);
    const bool has_own = !readings_.own.empty();
    const TimeGrid& grid = has_own ? readings_.own : readings_.step;
    if (grid.rows().size() > kFewRanks) heat_map(grid, has_own);
  }

  void heat_map(const TimeGrid& grid, bool is_own) {
    const std::vector<std::size_t> order = rows_in_order(grid);
    HeatMap map = heat_map_of(grid, order, kSeconds, seconds_);
    Chart chart{.id = "step_heat",
                .section = Section::kSteps,
                .title = is_own ? "A rank's own time in a step, each rank over time"
                                : "Time of a step, each rank over time",
                .summary = concat(count_text(static_cast<std::int64_t>(order.size()), "rank"),
                                  " from top to bottom; the stronger the colour, the longer."),
                .plot = std::move(map.plot),
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

  void network() {
    const Section section = Section::kNetwork;
    if (!readings_.received.empty() || !readings_.sent.empty()) {
      GridChart sum = of_machines("network", section, "Network, sum of the nodes", kRate);
      sum.is_half = false;
      charts_.push_back(
          two_sums_chart_of(readings_.received, "received", readings_.sent, "sent", sum));
    }
    if (readings_.received.rows().size() > 1) {
      add(readings_.received, of_machines("received", section, "Received, by node", kRate));
      add(readings_.sent, of_machines("sent", section, "Sent, by node", kRate));
    }
    GridChart again =
        of_machines("retransmits", section, "TCP segments sent again, per second", kNumber);
    again.is_half = false;
    add(readings_.retransmits, again);
  }

  void machines() {
    GridChart cpu = of_machines("cpu", Section::kMachines, "CPU, share of the machine", kPercent);
    cpu.top = 1;
    add(readings_.cpu, cpu);
    GridChart memory = of_machines("memory", Section::kMachines, "Memory in use", kBytes);
    add(readings_.memory, memory);
  }

  void gpus() {
    const auto of_gpus = [&](const char* id, const char* title, const Unit& unit) {
      GridChart chart = of_machines(id, Section::kGpus, title, unit);
      chart.one = "GPU";
      return chart;
    };
    GridChart use = of_gpus("gpu_use", "GPUs: time in which a kernel ran", kPercent);
    use.top = 1;
    add(readings_.gpu_use, use);
    GridChart memory = of_gpus("gpu_memory", "GPUs: memory in use", kBytes);
    add(readings_.gpu_memory, memory);
    GridChart peak = wanted("gpu_peak", Section::kGpus,
                            "GPUs: memory that a rank's tensors had at most", kBytes);
    peak.most_lines = kFewRanks;
    add(readings_.gpu_peak, peak);
    add(readings_.gpu_watts, of_gpus("gpu_power", "GPUs: power", kWatts));
    GridChart celsius = of_gpus("gpu_temperature", "GPUs: temperature", kCelsius);
    celsius.from_zero = false;
    add(readings_.gpu_celsius, celsius);
  }

  GridChart wanted(const char* id, Section section, const char* title, const Unit& unit) const {
    GridChart chart;
    chart.id = id;
    chart.section = section;
    chart.title = title;
    chart.unit = unit;
    chart.seconds = seconds_;
    chart.marks = marks_;
    return chart;
  }
  GridChart of_machines(const char* id, Section section, const char* title,
                        const Unit& unit) const {
    GridChart chart = wanted(id, section, title, unit);
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

}  // namespace

std::vector<Chart> charts_of(const Record& record, const Facts& facts) {
  return Maker(record, facts).charts();
}

}  // namespace ddprun::report
