// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/membership/held_claims.h"

#include <algorithm>
#include <exception>
#include <utility>
#include <vector>

#include "rendezvous/membership/job_rows.h"

namespace ddprun::membership {

static std::vector<std::string> names_of(const Voters& voters) {
  return {voters.begin(), voters.end()};
}

std::optional<HeldMark> mark_of(const Terms& terms, const RowsClock& clock,
                                const journal::Rows& rows, const JobState& state,
                                const journal::Rows* before) {
  auto earlier = read_held_mark(rows);
  if (!earlier && (terms.bases.empty() || terms.goes_on)) return std::nullopt;
  std::vector<std::string> bases = terms.bases;
  HeldMark mark;
  mark.clock_shift = clock.shift;
  if (earlier) {
    mark = std::move(*earlier);
    mark.is_incumbent = mark.is_incumbent && terms.is_incumbent;  // it may be another one's
    // The journal's clock is that of who wrote the mark, unless that was this very run.
    const bool is_shifted = !mark.boot.empty() && mark.boot == clock.boot;
    if (!is_shifted) mark.clock_shift += clock.shift;
    for (std::string& base : mark.bases) {
      if (std::ranges::count(bases, base) == 0) bases.push_back(std::move(base));
    }
  } else {
    mark.is_incumbent = terms.is_incumbent;
    mark.voters.push_back(names_of(voters_of(state)));
    if (before != nullptr) mark.voters.push_back(names_of(voters_of(read_job(*before, {}))));
  }
  mark.bases = std::move(bases);
  mark.boot = clock.boot;
  return mark;
}

Ballot ballot_of(const HeldMark& mark) {
  std::vector<Voters> sets;
  for (const auto& set : mark.voters) sets.emplace_back(set.begin(), set.end());
  return Ballot(std::move(sets), mark.is_incumbent);
}

std::string held_key(std::uint64_t number) { return job_row_prefix(number) + kHeldRow; }

std::map<std::uint64_t, journal::Rows> jobs_before(const Terms& terms) {
  if (!terms.rows_before) return {};
  return rows_by_job(*terms.rows_before);
}

const journal::Rows* rows_at(const std::map<std::uint64_t, journal::Rows>& jobs,
                             std::uint64_t number) {
  const auto found = jobs.find(number);
  return found == jobs.end() ? nullptr : &found->second;
}

journal::Batch held_marks(const Terms& terms, const journal::Rows& rows, const RowsClock& clock) {
  journal::Batch batch;
  const auto before = jobs_before(terms);
  for (const auto& [number, of_job] : rows_by_job(rows)) {
    try {
      const auto mark =
          mark_of(terms, clock, of_job, read_job(of_job, {}), rows_at(before, number));
      if (mark && !ballot_of(*mark).is_won()) batch.push_back({held_key(number), held_row(*mark)});
    } catch (const std::exception&) {  // of JSON, too; whoever restores it says so
      continue;
    }
  }
  return batch;
}

}  // namespace ddprun::membership
