// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/membership/voters.h"

#include <algorithm>
#include <utility>

namespace ddprun::membership {

Voters voters_of(const JobState& job) {
  Voters voters;
  if (job.round == 0 || job.verdict) return voters;
  const bool live = job.phase == JobPhase::kRunning || job.phase == JobPhase::kStopping;
  for (const auto& [id, node] : job.nodes) {
    if (!node.gone && (!live || is_member(node))) voters.insert(node.session);
  }
  return voters;
}

bool is_quorum(std::size_t granted, std::size_t voters, bool is_incumbent) {
  return is_incumbent ? 2 * granted >= voters : voters == 0 || 2 * granted > voters;
}

Ballot::Ballot(std::vector<Voters> sets, bool is_incumbent)
    : sets_(std::move(sets)), is_incumbent_(is_incumbent) {}

std::size_t Ballot::num_in(const Voters& set, const std::set<std::string>& sessions) {
  return static_cast<std::size_t>(std::ranges::count_if(
      set, [&](const std::string& session) { return sessions.contains(session); }));
}

bool Ballot::is_won() const {
  return std::ranges::all_of(sets_, [this](const Voters& set) {
    return is_quorum(num_in(set, granted_), set.size(), is_incumbent_);
  });
}

bool Ballot::is_lost() const {
  return std::ranges::any_of(sets_, [this](const Voters& set) {
    return !is_quorum(set.size() - num_in(set, denied_), set.size(), is_incumbent_);
  });
}

Ballot::Count Ballot::count() const {
  Count most_lacking;
  for (const Voters& set : sets_) {
    const Count each{num_in(set, granted_), set.size()};
    const auto lacking = [](const Count& of) { return of.voters - of.granted; };
    if (most_lacking.voters == 0 || lacking(each) > lacking(most_lacking)) most_lacking = each;
  }
  return most_lacking;
}

}  // namespace ddprun::membership
