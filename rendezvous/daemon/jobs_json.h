// SPDX-License-Identifier: Apache-2.0
// The status of all jobs as JSON, for GET /v1/jobs. Pure.
#pragma once

#include <string>
#include <vector>

#include "rendezvous/membership/machine.h"

namespace ddprun::rendezvous {

// {"version":"0.1.0","jobs":[{"run_id":…,"phase":…,"round":…,"nodes":[…],…}]}
std::string jobs_to_json(const std::vector<membership::JobStatus>& jobs);

}  // namespace ddprun::rendezvous
