// SPDX-License-Identifier: Apache-2.0
// What the journal keeps of a job that is held (held_jobs.h), so that a rendezvous that begins anew
// before it has won the job claims it as it did: the row "held" beside those of the job. Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/clock.h"
#include "rendezvous/journal/row.h"

namespace ddprun::membership {

struct HeldMark {
  std::vector<std::string> bases;  // newest first
  bool is_incumbent = false;
  std::vector<std::vector<std::string>> voters;  // one set or two
  // The points in time in the job's rows, with this added, are of the monotonic clock of that run
  // of that machine (common/boot_id.h).
  Clock::duration clock_shift{};
  std::string boot = {};

  friend bool operator==(const HeldMark&, const HeldMark&) = default;
};

inline constexpr char kHeldRow[] = "held";  // of a job: jobs/NUMBER/held

std::string held_row(const HeldMark& mark);
// From the rows of one job, their keys without prefix; nullopt: it was not held. Throws
// Error(kProtocol): the row makes no sense.
std::optional<HeldMark> read_held_mark(const journal::Rows& rows_of_job);

}  // namespace ddprun::membership
