// SPDX-License-Identifier: Apache-2.0
// The status of all jobs as JSON, for GET /v1/jobs. Pure.
#pragma once

#include <boost/json/object.hpp>
#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "common/wall_time.h"
#include "rendezvous/membership/machine.h"

namespace ddprun::rendezvous {

// How it is with --state-dir.
struct KeepingStatus {
  std::string trouble;                      // why jobs go on in memory; empty: all is kept
  std::chrono::milliseconds in_trouble{0};  // for how long
};

// {"kept":true}, or {"kept":false,"trouble":…,"trouble_seconds":…}.
boost::json::object keeping_object(const KeepingStatus& keeping);

// {"version":"0.1.0","jobs":[{"run_id":…,"phase":…,"round":…,"nodes":[…],…}],
// "finished":[{"run_id":…,"exit_code":…,…}],"journal":…}; nullopt: nothing is kept, "journal" is
// null.
std::string jobs_to_json(const std::vector<membership::JobStatus>& jobs,
                         const std::vector<membership::FinishedJob>& finished,
                         const std::optional<KeepingStatus>& keeping, const Moment& now);

}  // namespace ddprun::rendezvous
