// SPDX-License-Identifier: Apache-2.0
// The scheduler that `--to`, or a job's id, names.
#pragma once

#include <memory>
#include <string>

#include "ctl/endpoint_flags.h"
#include "ctl/submit/scheduler.h"

namespace ddprun::ctl {

// `place`: one of submit::place_names(). `endpoint`, which outlives it: of the `ddprund` that jobs
// of standing agents are asked of. `context`: of Kubernetes. Throws Error(kInvalidArgument) where
// that means nothing.
std::unique_ptr<submit::Scheduler> make_scheduler(const std::string& place,
                                                  const EndpointFlags& endpoint,
                                                  const std::string& context = {});

// The scheduler of a job, and what the job is called there: "slurm:4711", or "4711" with `place`.
// Throws Error(kInvalidArgument) where `job` says neither.
struct NamedJob {
  std::unique_ptr<submit::Scheduler> scheduler;
  std::string id;
};
NamedJob find_job(const std::string& job, const std::string& place, const EndpointFlags& endpoint,
                  const std::string& context);

}  // namespace ddprun::ctl
