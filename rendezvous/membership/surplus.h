// SPDX-License-Identifier: Apache-2.0
// A node for which the job has no place: does it wait as a spare, or is it another job that found
// its name or its port in use? Pure functions of the job's state.
#pragma once

#include <optional>

#include "rendezvous/membership/state.h"

namespace ddprun::membership {

// Not nullopt: `join` is a job of its own, and waiting would end with somebody else's exit code.
// So where nobody can be meant to wait (fixed ranks; a job of one node without --spares), and,
// beyond the spares that were asked for, where the program or the user is another one than on every
// node of the job. Names who holds the job. A node that is about to go, or has lost its connection,
// keeps no place.
std::optional<Refused> refuse_surplus(const JobState& job, const Join& join,
                                      const ConnectionFacts& facts);

// The rendezvous' port is this job's --master-port, and `join` wants it for another one. Names who
// holds it: a node of `job`, which must have one.
Refused port_in_use(const JobState& job, const Join& join, const ConnectionFacts& facts);

// What a surplus agent is told: that it waits as a spare, and what to do for a job of its own.
Waiting spare_note(const JobState& job, int num_members, int num_spares);

}  // namespace ddprun::membership
