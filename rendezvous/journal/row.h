// SPDX-License-Identifier: Apache-2.0
// What a journal keeps: named rows of text. A row is replaced or erased as a whole. Pure.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace ddprun::journal {

struct RowChange {
  std::string key;                     // "jobs/3/state"
  std::optional<std::string> content;  // nullopt: the row is erased
};

// All of them, or none: what one event changed.
using Batch = std::vector<RowChange>;

using Rows = std::map<std::string, std::string>;

}  // namespace ddprun::journal
