// SPDX-License-Identifier: Apache-2.0
// What status pages are told: the frames of GET /v1/watch (docs/status-page.md). Pure.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/daemon/daemon_status.h"
#include "rendezvous/daemon/jobs_json.h"
#include "rendezvous/daemon/tails.h"
#include "rendezvous/membership/machine.h"

namespace ddprun::rendezvous {

// Of all jobs together.
struct WatchedLimits {
  std::size_t nodes = 4'096;
  std::size_t finished = 100;  // those that ended last
  // Beyond, half of the nodes are left out, then half of the others, …; what else there is stays.
  std::size_t bytes = std::size_t{2} << 20;
};

struct WatchedJobs {
  // "jobs":{…},"hidden_nodes":[0,12],"hidden_finished":0: what a state has beside the status.
  std::string json;
  // Differs where a page is to be told of it: what only gets older with the time is no change.
  std::string key;
};

// Of a job's nodes those that run in order are left out first.
WatchedJobs watched_jobs(std::vector<membership::JobStatus> jobs,
                         std::vector<membership::FinishedJob> finished,
                         const std::optional<KeepingStatus>& keeping, const Moment& now,
                         const WatchedLimits& limits = {});

// Differs where a page is to be told of it: what is no clock, and no count of requests.
std::string watch_key(const DaemonStatus& status);

// Whole frames. `status`: status_to_json()'s, `jobs`: of watched_jobs().
std::string state_frame(std::string_view status, std::string_view jobs);
std::string status_frame(std::string_view status);
std::string too_large_frame(std::size_t num_bytes);
std::string end_frame(const std::string& why);
// `note`: which of its output is not in `lines`, and why.
std::string tail_frame(const Tails::Rank& rank, const std::vector<std::string>& lines,
                       const std::string& note);

// What a page says: {"tail":{"run_id":"…","rank":3}}, the rank whose output it looks at, or
// {"tail":null}. Throws Error(kProtocol), one line.
std::optional<Tails::Rank> read_page_message(std::string_view text);

}  // namespace ddprun::rendezvous
