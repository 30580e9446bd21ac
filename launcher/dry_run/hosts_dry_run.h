// SPDX-License-Identifier: Apache-2.0
// --dry-run of a job that is started on other hosts (--hosts).
#pragma once

#include "launcher/dry_run/dry_run.h"
#include "launcher/hosts/fleet_plan.h"

namespace ddprun::launcher {

// `plan` has no problems. Says what it and this machine's file system tell: no host is asked.
// `with_all_workers`: of each node, else of the first only.
DryRun dry_run_of_hosts(const FleetPlan& plan, bool with_all_workers);

}  // namespace ddprun::launcher
