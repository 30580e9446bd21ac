// SPDX-License-Identifier: Apache-2.0
// The parts of GET /v1/jobs as JSON (docs/ctl.md). Pure.
#pragma once

#include <boost/json/object.hpp>
#include <chrono>
#include <optional>
#include <string>

#include "common/wall_time.h"
#include "rendezvous/membership/machine.h"

namespace ddprun::rendezvous {

// The status of the journal.
struct KeepingStatus {
  // Why jobs go on in memory or, with a shared journal, wait; empty: all is kept.
  std::string trouble;
  std::chrono::milliseconds in_trouble{0};  // its duration so far
  bool is_shared = false;
};

// Returns a job's ETTR with three digits, so that it seldom changes while the job goes on.
std::optional<double> shown_ettr(const membership::JobStatus& job, const Moment& now);

// Without the nodes, which come in a member "nodes".
boost::json::object job_object(const membership::JobStatus& job, const Moment& now);
boost::json::object node_object(const membership::NodeStatus& node, const Moment& now);
boost::json::object finished_object(const membership::FinishedJob& job, const Moment& now);
boost::json::object keeping_object(const KeepingStatus& keeping);

}  // namespace ddprun::rendezvous
