// SPDX-License-Identifier: Apache-2.0
// The last thing on screen when a job failed: who failed first, how, with which last words. Pure.
#pragma once

#include <string>

#include "rendezvous/membership/messages.h"

namespace ddprun::launcher {

struct ReportContext {
  std::string program;  // as typed
  int max_restarts = 0;
  bool is_alone = false;  // the job has one worker
  int node_rank = -1;     // this node's; −1: it never had one
  bool local = false;     // decided here, not by the rendezvous
  std::string job_id = {};
};

// Several lines, the last one with the exit code; empty for a job that ended with 0, unless this
// node was a spare of it to its end: then one line that says so.
std::string failure_report(const membership::JobEnd& verdict, const ReportContext& context);

// "exit code 3", "killed by SIGSEGV (signal 11)".
std::string how_it_ended(const membership::WorkerFailure& failure);

}  // namespace ddprun::launcher
