// SPDX-License-Identifier: Apache-2.0
// Readings of many ranks or nodes over a job's time, in memory that has a bound: a row for each of
// them, and columns of time that become twice as wide whenever there would be too many. Pure.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace ddprun::report {

class TimeGrid {
 public:
  static constexpr std::size_t kMostColumns = 512;
  static constexpr std::size_t kMostCells = std::size_t{1} << 22;  // 8 bytes each
  static constexpr std::size_t kMostRows = std::size_t{1} << 17;
  static constexpr double kFirstWidth = 1;  // seconds

  struct Row {
    std::string name;
    double sum = 0, seconds = 0;  // of value × seconds, and how long there was a value
    double least = 0, most = 0;   // of single readings
    double most_at = 0;

    double mean() const { return seconds > 0 ? sum / seconds : 0; }
  };

  // The number of the row with this name, which is made where there is none. nullopt: there are
  // too many.
  std::optional<std::size_t> row(const std::string& name);

  // `value` was so from `begin` to `end`, in seconds since the job began; of no length: for a
  // moment. Finite.
  void add(std::size_t row, double begin, double end, double value);

  bool empty() const { return num_columns_ == 0; }
  const std::vector<Row>& rows() const { return rows_; }
  std::size_t num_columns() const { return num_columns_; }  // up to the last with a value
  double width() const { return width_; }
  // The mean of the row in that column. nullopt: no reading says.
  std::optional<double> at(std::size_t row, std::size_t column) const;

 private:
  struct Cell {
    float sum = 0, seconds = 0;
  };

  std::size_t most_columns() const;
  void widen();

  std::vector<Row> rows_;
  std::map<std::string, std::size_t, std::less<>> by_name_;
  std::vector<std::vector<Cell>> cells_;  // by row
  double width_ = kFirstWidth;
  std::size_t num_columns_ = 0;
};

}  // namespace ddprun::report
