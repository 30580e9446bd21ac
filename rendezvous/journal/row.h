// SPDX-License-Identifier: Apache-2.0
// What a journal keeps: named rows of text. A row is replaced or erased as a whole. Pure.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun::journal {

struct RowChange {
  std::string key;                     // "jobs/3/state"
  std::optional<std::string> content;  // nullopt: the row is erased
};

// All of them, or none: what one event changed.
using Batch = std::vector<RowChange>;

using Rows = std::map<std::string, std::string>;

// Makes of `rows` what a journal with them has once `batch` is kept.
inline void apply_batch(const Batch& batch, Rows& rows) {
  for (const RowChange& change : batch) {
    if (change.content) {
      rows[change.key] = *change.content;
    } else {
      rows.erase(change.key);
    }
  }
}

// A row in which users' secrets may be, as a gang's environment: nothing of it stays in the files
// once it is erased.
inline bool is_wiped(std::string_view key) {
  return key.starts_with("gangs/") && key.ends_with("/spec");
}

// A row of a ddprund with --standby or --standby-of, which earlier versions had: the other ddprund
// may have gone on with the jobs of this journal.
inline bool is_of_pair(std::string_view key) {
  return key.starts_with("leader/") || (key.starts_with("jobs/") && key.ends_with("/held"));
}

}  // namespace ddprun::journal
