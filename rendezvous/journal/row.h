// SPDX-License-Identifier: Apache-2.0
// A journal's rows, which are named texts. A row is replaced or erased as a whole. Pure.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/clock.h"

namespace ddprun::journal {

struct RowChange {
  std::string key;                     // "jobs/3/state"
  std::optional<std::string> content;  // nullopt: the row is erased
};

// The changes of one event. A journal keeps all of them, or none.
using Batch = std::vector<RowChange>;

using Rows = std::map<std::string, std::string>;

inline void apply_batch(const Batch& batch, Rows& rows) {
  for (const RowChange& change : batch) {
    if (change.content) {
      rows[change.key] = *change.content;
    } else {
      rows.erase(change.key);
    }
  }
}

// Returns whether the row may have users' secrets. Once it is erased, nothing of it stays in the
// files.
inline bool is_wiped(std::string_view key) {
  return key.starts_with("gangs/") && key.ends_with("/spec");
}

// Returns whether the row is from an earlier version's --standby: the other ddprund may have gone
// on with these jobs.
inline bool is_of_pair(std::string_view key) {
  return key.starts_with("leader/") || (key.starts_with("jobs/") && key.ends_with("/held"));
}

// The rows that an earlier process left in a journal. Pure.
struct Content {
  Rows rows;
  // Must be added to the rows' points in time; 0: the monotonic clock is the same one.
  Clock::duration clock_shift{};
  // One line for each thing that could not be read; empty: all could.
  std::vector<std::string> losses;
};

}  // namespace ddprun::journal
