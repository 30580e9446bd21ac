// SPDX-License-Identifier: Apache-2.0
// Readings in bounded memory, and what becomes of them: axes, lines, bands, bars, maps.
#include <algorithm>
#include <cmath>
#include <limits>

#include "ctl/report/bar_plot.h"
#include "ctl/report/grid_chart.h"
#include "ctl/report/heat_plot.h"
#include "ctl/report/numbers.h"
#include "ctl/report/time_grid.h"
#include "tests/support/catch.h"

namespace ddprun::report {
namespace {

using ddprun::test::Contains;

using Numbers = std::vector<double>;

TEST_CASE("TimeGrid: a reading counts for as long as it was so") {
  TimeGrid grid;
  const std::size_t row = grid.row("0").value();
  CHECK(grid.empty());
  grid.add(row, 0.5, 2.5, 4);
  grid.add(row, 2.5, 3, 8);
  CHECK(grid.num_columns() == 3);
  CHECK(grid.at(row, 0).value() == Approx(4));
  CHECK(grid.at(row, 2).value() == Approx(6));
  CHECK_FALSE(grid.at(row, 3));
  CHECK(grid.rows()[row].mean() == Approx(4.8));
  CHECK(grid.rows()[row].least == 4);
  CHECK(grid.rows()[row].most == 8);
  CHECK(grid.rows()[row].most_at == 3);
}

TEST_CASE("TimeGrid: however long a job is, no more columns, and the same means") {
  TimeGrid grid;
  const std::size_t row = grid.row("0").value(), late = grid.row("1").value();
  for (int second = 0; second < 36'000; second += 5) grid.add(row, second, second + 5, second % 10);
  grid.add(late, 35'990, 36'000, 7);
  CHECK(grid.num_columns() <= TimeGrid::kMostColumns);
  CHECK(grid.num_columns() > TimeGrid::kMostColumns / 2);
  CHECK(grid.rows()[row].mean() == Approx(2.5));
  CHECK(grid.at(row, 100).value() == Approx(2.5).margin(0.2));
  CHECK_FALSE(grid.at(late, 100));
  CHECK(grid.at(late, grid.num_columns() - 1).value() == Approx(7));
}

TEST_CASE("TimeGrid: however many ranks there are, no more cells, too many rows are refused") {
  TimeGrid grid;
  for (std::size_t rank = 0; rank < 20'000; ++rank) {
    grid.add(grid.row(std::to_string(rank)).value(), 0, 500, 1);
  }
  CHECK(grid.num_columns() * grid.rows().size() <= TimeGrid::kMostCells);
  CHECK(grid.at(19'999, 0).value() == Approx(1));
  TimeGrid full;
  for (std::size_t rank = 0; rank < TimeGrid::kMostRows; ++rank) full.row(std::to_string(rank));
  CHECK_FALSE(full.row("one more"));
  CHECK(full.row("7").value() == 7);
}

TEST_CASE("numbers: of an axis, without zeros that say nothing") {
  CHECK(clock_text(3723) == "1:02:03");
  CHECK(clock_text(90'000) == "1 d 1:00");
  CHECK(tick_text(1.5e9, rate_text) == "1.5 GB/s");
  CHECK(tick_text(1.5, number_text) == "1.5");
  CHECK(tick_text(0.05, number_text) == "0.05");
  CHECK(tick_text(1000, number_text) == "1,000");
  CHECK(tick_text(10, number_text) == "10");
}

TEST_CASE("numbers: round values for an axis") {
  CHECK(nice_ticks(0, 10, 5) == Numbers{0, 2, 4, 6, 8, 10});
  CHECK(nice_ticks(0, 0.93, 4) == Numbers{0, 0.5, 1});
  CHECK(nice_ticks(0.52, 2.2, 4) == Numbers{0.5, 1, 1.5, 2, 2.5});
  CHECK(nice_ticks(-3, 3, 3) == Numbers{-4, -2, 0, 2, 4});
  CHECK(nice_ticks(5, 5, 4).front() < 5);
  CHECK(nice_ticks(5, 5, 4).back() > 5);
  CHECK(nice_ticks(0, 1e300, 4).size() < 12);
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  CHECK(nice_ticks(0, kInfinity, 4).size() == 2);
  CHECK(nice_ticks(1e200, 1e200 * (1 + 1e-15), 4).size() == 2);
  CHECK(nice_byte_ticks(kInfinity, 4).size() < 12);
  CHECK(nice_byte_ticks(3.0 * 1024 * 1024, 4) == Numbers{0, 1048576, 2097152, 3145728});
  CHECK(nice_byte_ticks(0, 4).size() > 1);
  CHECK(time_ticks(600, 9) == Numbers{0, 120, 240, 360, 480, 600});
  CHECK(time_ticks(36'000, 9) == Numbers{0, 7200, 14'400, 21'600, 28'800, 36'000});
  CHECK(time_ticks(0.5, 5).size() > 2);
  CHECK(time_ticks(400 * 86'400.0, 9).size() <= 10);
}

// All points of lines and areas, and of labels.
void check_inside(const Drawing& drawing) {
  for (const Shape& shape : drawing.shapes) {
    for (const auto& part : shape.parts) {
      for (const Point& point : part) {
        CHECK((point.x >= 0 && point.x <= drawing.width && point.y >= 0 &&
               point.y <= drawing.height));
      }
    }
  }
  for (const Label& label : drawing.labels) {
    const double width = text_width(label.text, label.size);
    const double left = label.anchor == Anchor::kStart ? label.at.x
                        : label.anchor == Anchor::kEnd ? label.at.x - width
                                                       : label.at.x - width / 2;
    CAPTURE(label.text);
    CHECK((left >= -0.5 && left + width <= drawing.width + 0.5));
    CHECK((label.at.y > 0 && label.at.y <= drawing.height));
  }
}

TEST_CASE("LinePlot: values lie between their axis' ends, gaps stay gaps, one point is seen") {
  LinePlot plot;
  plot.x_high = 100;
  plot.lines = {{.paint = kBlue, .runs = {{{0, 0}, {50, 5}}, {{100, 10}}}}};
  plot.marks = {30};
  const Drawing drawing = draw(plot);
  check_inside(drawing);
  const Shape& line = drawing.shapes.back();
  REQUIRE(line.parts.size() == 2);
  CHECK(line.parts[0][0].y > line.parts[0][1].y);
  CHECK(line.parts[0][1].y - line.parts[1][0].y == Approx(line.parts[0][0].y - line.parts[0][1].y));
  CHECK(line.parts[1].size() == 2);
  const Shape& marks = drawing.shapes[drawing.shapes.size() - 2];
  CHECK(marks.dashed);
  CHECK(marks.parts.size() == 1);
}

TEST_CASE("LinePlot: nothing, all the same, and only nothing still have axes") {
  for (const Runs& runs : {Runs{}, Runs{{{0, 3}, {1, 3}}}, Runs{{{0, 0}, {1, 0}}}}) {
    LinePlot plot;
    plot.lines = {{.paint = kBlue, .runs = runs}};
    check_inside(draw(plot));
    plot.from_zero = false;
    check_inside(draw(plot));
  }
  LinePlot bytes;
  bytes.y_text = rate_text;
  bytes.lines = {{.paint = kBlue, .runs = {{{0, 0}, {1, 0}}}}};
  const Drawing drawing = draw(bytes);
  CHECK(std::count_if(drawing.labels.begin(), drawing.labels.end(),
                      [](const Label& label) { return label.text == "0 B/s"; }) == 1);
}

TEST_CASE("LinePlot: what few peaks would dwarf is cut above nearly all values") {
  Numbers values(100, 1.0);
  CHECK_FALSE(top_without_peaks(values));
  values[0] = 10;
  CHECK(top_without_peaks(values).value() == Approx(1.2));
  CHECK_FALSE(top_without_peaks({1, 10}));
  LinePlot plot;
  plot.y_top = 1.2;
  plot.lines = {{.paint = kBlue, .runs = {{{0, 1}, {1, 10}}}}};
  check_inside(draw(plot));
}

TEST_CASE("bars: shares fill a bar, along the time each part is where it was") {
  const std::vector<Bar> bars{
      {.name = "all rounds", .parts = {{kBlueFill, 0, 30}, {kRedFill, 30, 10}}, .text = "40.0 s"},
      {.name = "round 1", .parts = {}, .text = ""}};
  const Drawing shares = draw_shares(bars, 900);
  check_inside(shares);
  REQUIRE(shares.shapes.size() == 2);
  const auto width = [](const Shape& shape) { return shape.parts[0][1].x - shape.parts[0][0].x; };
  CHECK(width(shares.shapes[0]) == Approx(3 * width(shares.shapes[1])));
  const Drawing timeline = draw_timeline(bars, 80, 900);
  check_inside(timeline);
  CHECK(width(timeline.shapes[1]) == Approx(3 * width(timeline.shapes[2])));
  CHECK(timeline.shapes[2].parts[0][1].x < 500);
}

TimeGrid grid_of(std::size_t ranks, int seconds, std::size_t slow) {
  TimeGrid grid;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const std::size_t row = grid.row(std::to_string(rank)).value();
    grid.add(row, 0, seconds, rank == slow ? 0.4 : 0.2);
  }
  return grid;
}

GridChart wanted_chart(double seconds) {
  GridChart wanted;
  wanted.id = "step_time";
  wanted.text = seconds_text;
  wanted.seconds = seconds;
  return wanted;
}

TEST_CASE("charts: 16 ranks are 16 lines, each named") {
  const Chart chart = chart_of(grid_of(16, 100, 11), wanted_chart(100));
  check_inside(chart.drawing);
  CHECK(chart.legend.size() == 16);
  CHECK(chart.legend[11].text == "rank 11: 400 ms");
  CHECK_THAT(chart.summary, Contains("highest mean 400 ms (rank 11)"));
  CHECK(chart.table.heads.size() == 17);
  CHECK(chart.table.rows.size() <= 60);
}

TEST_CASE("charts: 1,000 ranks are a band, their middle and the worst, who is named, few points") {
  const Chart chart = chart_of(grid_of(1000, 36'000, 617), wanted_chart(36'000));
  check_inside(chart.drawing);
  CHECK(chart.legend.size() == 3);
  CHECK_THAT(chart.legend[2].text, Contains("rank 617"));
  CHECK_THAT(
      chart.summary,
      Contains("1,000 ranks: mean 200 ms in the middle, 200 ms to 400 ms; highest mean: rank 617"));
  for (const Shape& shape : chart.drawing.shapes) {
    for (const auto& part : shape.parts) CHECK(part.size() <= 2 * TimeGrid::kMostColumns);
  }
  CHECK(chart.table.rows.size() <= 60);
}

TEST_CASE("charts: spreads and sums of all ranks") {
  const auto spreads = spreads_of(grid_of(100, 10, 3));
  REQUIRE(spreads.size() == 10);
  CHECK(spreads[4].value().middle == Approx(0.2));
  CHECK(spreads[4].value().most == Approx(0.4));
  CHECK(spreads[4].value().worst == 3);
  CHECK(spreads[4].value().sum == Approx(99 * 0.2 + 0.4));
  CHECK_THAT(sum_chart_of(grid_of(2, 10, 1), wanted_chart(10)).summary,
             Contains("Sum of 2 ranks: mean 600 ms"));
}

TEST_CASE("heat map: 1,000 ranks are 125 lines of few rectangles, a slow one is the strongest") {
  const TimeGrid grid = grid_of(1000, 36'000, 617);
  const HeatMap map = draw_heat_map(grid, rows_in_order(grid), 900, 36'000, seconds_text);
  check_inside(map.drawing);
  CHECK(map.rows_of_line == 8);
  CHECK(map.drawing.shapes[0].parts.size() == 124);
  REQUIRE(map.drawing.shapes[kNumHeatPaints - 1].parts.size() == 1);
  const double y = map.drawing.shapes[kNumHeatPaints - 1].parts[0][0].y;
  CHECK(std::lround((y - 4) / (384.0 / 125)) == 617 / 8);
  CHECK(map.scale.level_of(0.2) == 0);
  CHECK(map.scale.level_of(-1e300) == 0);
  CHECK(map.scale.level_of(1e300) == kNumHeatPaints - 1);
}

TEST_CASE("charts: rows by number, or by name") {
  TimeGrid grid;
  for (const char* name : {"10", "9", "2"}) grid.row(name);
  CHECK(rows_in_order(grid) == std::vector<std::size_t>{2, 1, 0});
  TimeGrid hosts;
  for (const char* name : {"n2", "n1"}) hosts.row(name);
  CHECK(rows_in_order(hosts) == std::vector<std::size_t>{1, 0});
}

}  // namespace
}  // namespace ddprun::report
