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

// How it is with --state-dir.
struct KeepingStatus {
  // Why jobs go on in memory, or wait where the journal is shared; empty: all is kept.
  std::string trouble;
  std::chrono::milliseconds in_trouble{0};  // for how long
  bool is_shared = false;
};

// A job's ETTR in three digits: of one that goes on as it did it is seldom another one.
std::optional<double> shown_ettr(const membership::JobStatus& job, const Moment& now);

// Without its nodes, which are a member "nodes".
boost::json::object job_object(const membership::JobStatus& job, const Moment& now);
boost::json::object node_object(const membership::NodeStatus& node, const Moment& now);
boost::json::object finished_object(const membership::FinishedJob& job, const Moment& now);
boost::json::object keeping_object(const KeepingStatus& keeping);

}  // namespace ddprun::rendezvous
