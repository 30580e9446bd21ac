// SPDX-License-Identifier: Apache-2.0
// Whether the workers that live may go on where they are (docs/inplace.md): any doubt means that
// the job restarts. Pure functions of the job's state.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "rendezvous/membership/state.h"

namespace ddprun::membership {

// How long an agent waits until its workers have asked to go on. A worker asks when an operation
// with the dead one has failed, so this is also the longest step that is survived in place.
inline constexpr std::chrono::milliseconds kKeepTime{10'000};

// A worker has failed, which ends the live round, and is counted already. Empty: those that are
// left may try; else why not.
std::string doubt_about_failure(const JobState& job, const WorkerFailure& failure);

// All members of the round that is being stopped have answered. Empty: the next round begins in
// place; else why not.
std::string doubt_about_kept(const JobState& job);

// The members by node rank.
std::vector<NodeId> members_in_order(const JobState& job);

}  // namespace ddprun::membership
