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

// A row that says whose the journal is (docs/ha-standby.md): a change of it outlives the machine's
// end, whatever the Durability, and so does all that was committed before.
inline bool is_always_synced(std::string_view key) {
  return key.starts_with("leader/") && key != "leader/before";
}

}  // namespace ddprun::journal
