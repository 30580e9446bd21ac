// SPDX-License-Identifier: Apache-2.0
// Lines out of the pieces in which a file is read. Pure.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

namespace ddprun::report {

// Of ddprun's own lines the longest, a verdict with its ledger, has less than 100 KiB.
inline constexpr std::size_t kMostLineBytes = std::size_t{1} << 20;

class LineSplitter {
 public:
  // `take` gets each line without its end. Of one that is longer than kMostLineBytes it gets the
  // beginning, which is no JSON any more, and the rest is left out.
  explicit LineSplitter(std::function<void(std::string_view)> take) : take_(std::move(take)) {}

  void add(std::string_view piece);
  // The file is over: what is left is a line that was cut.
  void end();

 private:
  void keep(std::string_view part);

  const std::function<void(std::string_view)> take_;
  std::string begun_;  // of a line whose end has not come
};

}  // namespace ddprun::report
