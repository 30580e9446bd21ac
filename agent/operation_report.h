// SPDX-License-Identifier: Apache-2.0
// What a failed worker was in, of the operations of its communicators, in a sentence for the report
// (docs/flight-recorder.md). Pure.
#pragma once

#include <string>
#include <vector>

#include "agent/worker_line.h"
#include "common/clock.h"
#include "common/operation_facts.h"

namespace ddprun::agent {

// Of one that said what failed: who never came, who waited, for how long.
std::string failed_operation_text(const OperationFailed& failed);

// Whether all ranks of the job are to write their flight recorders: a deadline expired, or the
// ranks parted. A lost peer alone ends the round without.
bool is_worth_recording(const OperationFailed& failed);

// Of one that ended without a word, from its progress page: "it was in … since 0.2 s" or "after
// collective #126 of communicator 0"; empty: it had begun none.
std::string whereabouts_text(const std::vector<CommunicatorState>& communicators,
                             Clock::time_point now);

}  // namespace ddprun::agent
