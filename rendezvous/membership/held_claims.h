// SPDX-License-Identifier: Apache-2.0
// How a job that is held is claimed: anew, or as its mark says. Private to HeldJobs. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "rendezvous/journal/row.h"
#include "rendezvous/membership/held_jobs.h"
#include "rendezvous/membership/held_mark.h"

namespace ddprun::membership {

// Of Terms::rows_before, by number.
std::map<std::uint64_t, journal::Rows> jobs_before(const Terms& terms);
// Null: there are none.
const journal::Rows* rows_at(const std::map<std::uint64_t, journal::Rows>& jobs,
                             std::uint64_t number);

// `rows` and `before` are those of one job, their keys without prefix; `before` may be null. As it
// was claimed, where it was held. nullopt: it needn't be held. Throws as read_held_mark() and
// read_job().
std::optional<HeldMark> mark_of(const Terms& terms, const RowsClock& clock,
                                const journal::Rows& rows, const JobState& state,
                                const journal::Rows* before);
Ballot ballot_of(const HeldMark& mark);
std::string held_key(std::uint64_t number);

}  // namespace ddprun::membership
