// SPDX-License-Identifier: Apache-2.0
// `ddprunctl doctor` of several nodes: as a worker of ddprun, one on each node. docs/doctor.md.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "common/clock.h"
#include "ctl/doctor/checks.h"
#include "ctl/doctor/facts.h"
#include "ctl/doctor/nodes/place.h"
#include "ctl/doctor/report.h"
#include "ctl/doctor/thresholds.h"

namespace ddprun::ctl {

struct NodesDoctorOptions {
  std::vector<const doctor::Check*> checks;
  doctor::Thresholds thresholds;
  std::string tier;
  Clock::time_point begun;
  std::chrono::milliseconds limit{30'000};
};

// What node rank 0 says of all of them; `report` becomes what is known of all. Other nodes: "".
// Throws Error where the others can't be heard of.
struct NodesReport {
  bool is_told = false;  // this is node rank 0
  doctor::Report report;
  std::string table, json;
};
NodesReport look_at_nodes(const NodesDoctorOptions& options, const doctor::Place& place,
                          const doctor::Facts& facts, std::vector<doctor::Finding> findings,
                          bool shows_all);

// The part of a node's further workers: their ranks in the collectives. Throws likewise.
void join_as_rank(const NodesDoctorOptions& options, const doctor::Place& place);

// Runs `ddprun --hosts=HOSTS … ddprunctl doctor` with `flags`. Its exit status: a verdict's,
// unknown where the hosts can't be had, or 128 and the signal that ended it. Throws Error where it
// can't be started.
int run_on_hosts(const std::string& hosts, const std::vector<std::string>& flags);

}  // namespace ddprun::ctl
