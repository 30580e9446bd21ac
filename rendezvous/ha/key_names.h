// SPDX-License-Identifier: Apache-2.0
// Every key that ddprund has in etcd, below the prefix of --ha. Pure.
#pragma once

#include <string>

namespace ddprun::ha {

// Who leads; ends with its lease. Every change of another key is guarded by it.
inline std::string leader_key(const std::string& prefix) { return prefix + "/leader"; }

// Changed by each transaction: its number, and the time of the leader's monotonic clock.
inline std::string clock_key(const std::string& prefix) { return prefix + "/clock"; }

// One of the journal's rows, as stored_rows.h has it: rows/jobs/3/state.
inline std::string rows_prefix(const std::string& prefix) { return prefix + "/rows/"; }

// The contents of one large row, in parts: blobs/ID/PART.
inline std::string blobs_prefix(const std::string& prefix) { return prefix + "/blobs/"; }
inline std::string blob_prefix(const std::string& prefix, const std::string& blob) {
  return blobs_prefix(prefix) + blob + "/";
}

// A batch of many rows, in parts, log/PART; it counts once log/commit is there.
inline std::string log_prefix(const std::string& prefix) { return prefix + "/log/"; }
inline std::string log_commit_key(const std::string& prefix) { return prefix + "/log/commit"; }

}  // namespace ddprun::ha
