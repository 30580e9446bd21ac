// SPDX-License-Identifier: Apache-2.0
#include "ctl/report/record.h"

namespace ddprun::report {
namespace {

// A reading without length counts as this long, in seconds.
constexpr double kMoment = 0.001;

}  // namespace

std::optional<std::size_t> TimeGrid::row(const std::string& name) {
  const auto known = by_name_.find(name);
  if (known != by_name_.end()) return known->second;
  if (rows_.size() >= kMostRows) return std::nullopt;
  rows_.push_back({.name = name});
  cells_.emplace_back();
  by_name_.emplace(name, rows_.size() - 1);
  while (num_columns_ > most_columns()) widen();
  return rows_.size() - 1;
}

std::size_t TimeGrid::most_columns() const {
  return std::clamp<std::size_t>(kMostCells / std::max<std::size_t>(rows_.size(), 1), 1,
                                 kMostColumns);
}

void TimeGrid::widen() {
  for (std::vector<Cell>& cells : cells_) {
    for (std::size_t column = 0; column < cells.size(); column += 2) {
      Cell both = cells[column];
      if (column + 1 < cells.size()) {
        both.sum += cells[column + 1].sum;
        both.seconds += cells[column + 1].seconds;
      }
      cells[column / 2] = both;
    }
    cells.resize((cells.size() + 1) / 2);
    cells.shrink_to_fit();
  }
  width_ *= 2;
  num_columns_ = (num_columns_ + 1) / 2;
}

void TimeGrid::add(std::size_t row, double begin, double end, double value) {
  begin = std::max(begin, 0.0);
  end = std::max(end, begin);
  if (end - begin < kMoment) begin = std::max(end - kMoment, 0.0), end = begin + kMoment;
  while (end > width_ * static_cast<double>(most_columns())) widen();
  const auto first = static_cast<std::size_t>(begin / width_);
  const std::size_t last = std::min(static_cast<std::size_t>(end / width_), most_columns() - 1);
  std::vector<Cell>& cells = cells_[row];
  for (std::size_t column = first; column <= last; ++column) {
    const double from = std::max(begin, static_cast<double>(column) * width_);
    const double to = std::min(end, static_cast<double>(column + 1) * width_);
    if (to <= from) continue;
    if (column >= cells.size()) cells.resize(column + 1);
    cells[column].sum += static_cast<float>(value * (to - from));
    cells[column].seconds += static_cast<float>(to - from);
    num_columns_ = std::max(num_columns_, column + 1);
  }
  Row& whole = rows_[row];
  if (whole.seconds == 0 || value < whole.least) whole.least = value;
  if (whole.seconds == 0 || value > whole.most) whole.most = value, whole.most_at = end;
  whole.sum += value * (end - begin);
  whole.seconds += end - begin;
}

std::optional<double> TimeGrid::at(std::size_t row, std::size_t column) const {
  const std::vector<Cell>& cells = cells_[row];
  if (column >= cells.size() || cells[column].seconds <= 0) return std::nullopt;
  return static_cast<double>(cells[column].sum) / static_cast<double>(cells[column].seconds);
}

}  // namespace ddprun::report
