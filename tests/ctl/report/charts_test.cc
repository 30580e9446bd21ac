// SPDX-License-Identifier: Apache-2.0
// Readings in bounded memory, and the texts of charts. report_test.py looks at the drawings.
#include <boost/json/array.hpp>
#include <boost/json/value.hpp>

#include "ctl/report/grid_chart.h"
#include "ctl/report/record.h"
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

TEST_CASE("TimeGrid: a long job has no more columns, and the same means") {
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

TEST_CASE("TimeGrid: many ranks have no more cells, and too many rows are refused") {
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

TEST_CASE("charts: a scale that few peaks would dwarf ends above nearly all values") {
  Numbers values(100, 1.0);
  CHECK_FALSE(top_without_peaks(values));
  values[0] = 10;
  CHECK(top_without_peaks(values).value() == Approx(1.2));
  CHECK_FALSE(top_without_peaks({1, 10}));
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
  wanted.unit = kSeconds;
  wanted.seconds = seconds;
  return wanted;
}

TEST_CASE("charts: 16 ranks are 16 lines, each named") {
  const Chart chart = chart_of(grid_of(16, 100, 11), wanted_chart(100));
  CHECK(chart.legend.size() == 16);
  CHECK(chart.legend[11] == "rank 11: 400 ms");
  CHECK_THAT(chart.summary, Contains("highest mean 400 ms (rank 11)"));
  const boost::json::array& lines = chart.plot.at("lines").as_array();
  REQUIRE(lines.size() == 16);
  CHECK(lines[11].at("y").at(50).to_number<double>() == Approx(0.4));
  CHECK(lines[11].at("dashed").as_bool());
  CHECK_FALSE(lines[7].at("dashed").as_bool());
  CHECK(chart.plot.at("x").at(50).to_number<double>() == 50.5);
  CHECK(chart.table.heads.size() == 17);
  CHECK(chart.table.rows.size() <= 60);
}

TEST_CASE("charts: 1,000 ranks are a band, their middle and the worst, who is named, few points") {
  const Chart chart = chart_of(grid_of(1000, 36'000, 617), wanted_chart(36'000));
  CHECK(chart.legend.size() == 3);
  CHECK_THAT(chart.legend[1], Contains("rank 617"));
  CHECK_THAT(
      chart.summary,
      Contains("1,000 ranks: mean 200 ms in the middle, 200 ms to 400 ms; highest mean: rank 617"));
  CHECK(chart.plot.at("x").as_array().size() <= TimeGrid::kMostColumns);
  CHECK(chart.plot.at("lines").as_array().size() == 2);
  CHECK(chart.plot.at("lines").at(0).at("y").at(9).to_number<double>() == Approx(0.2));
  CHECK(chart.plot.at("lines").at(1).at("y").at(9).to_number<double>() == Approx(0.4));
  CHECK(chart.plot.at("bands").at(0).at("high").at(9).to_number<double>() == Approx(0.2));
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

TEST_CASE("charts: a time without a reading is a gap, a value has five digits") {
  TimeGrid grid;
  const std::size_t row = grid.row("0").value();
  grid.add(row, 0, 1, 1.0 / 3);
  grid.add(row, 2, 3, 2);
  const Chart chart = chart_of(grid, wanted_chart(3));
  const boost::json::value& values = chart.plot.at("lines").at(0).at("y");
  CHECK(values.at(0).to_number<double>() == 0.33333);
  CHECK(values.at(1).is_null());
  CHECK(values.at(2).to_number<double>() == 2);
}

TEST_CASE("heat map: 1,000 ranks are 125 lines, each the highest of its ranks") {
  const TimeGrid grid = grid_of(1000, 36'000, 617);
  const HeatMap map = heat_map_of(grid, rows_in_order(grid), kSeconds, 36'000);
  CHECK(map.rows_of_line == 8);
  const boost::json::array& lines = map.plot.at("lines").as_array();
  REQUIRE(lines.size() == 125);
  CHECK(lines[77].at("name").as_string() == "616");
  for (std::size_t line = 0; line < lines.size(); ++line) {
    const boost::json::array& values = lines[line].at("values").as_array();
    CHECK(values.size() <= 160);
    CHECK(values[70].to_number<double>() == Approx(line == 617 / 8 ? 0.4 : 0.2));
  }
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
