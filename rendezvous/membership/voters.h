// SPDX-License-Identifier: Apache-2.0
// Who decides which of two rendezvous goes on with a job: its own nodes, each of which grants one
// claim (docs/rendezvous.md, "Terms"). Pure.
#pragma once

#include <cstddef>
#include <set>
#include <string>
#include <vector>

#include "rendezvous/membership/state.h"

namespace ddprun::membership {

using Voters = std::set<std::string>;  // by session

// Of a job as its rows have it: the members of the live round that have not gone; between rounds
// all nodes that have not gone. None before the first round, and once the verdict is decided:
// nothing can be told to anybody then that another rendezvous could contradict.
Voters voters_of(const JobState& job);

// Half of them are enough for the incumbent, whose own term was the basis; anybody else needs more
// than half. So two that claim the same basis never both have enough.
bool is_quorum(std::size_t granted, std::size_t voters, bool is_incumbent);

// The votes for one claim.
class Ballot {
 public:
  // Of each set a quorum is needed; an empty one has it.
  Ballot(std::vector<Voters> sets, bool is_incumbent);

  // Once for each session; one that is no voter's changes nothing. What is granted is for good.
  void grant(const std::string& session) { granted_.insert(session); }
  void deny(const std::string& session) { denied_.insert(session); }
  void forget_denials() { denied_.clear(); }  // who denied is asked again

  bool is_won() const;
  // Whoever votes yet, it can't be won any more.
  bool is_lost() const;

  struct Count {
    std::size_t granted = 0, voters = 0;
  };
  Count count() const;  // of the set that lacks most

 private:
  static std::size_t num_in(const Voters& set, const std::set<std::string>& sessions);

  std::vector<Voters> sets_;
  bool is_incumbent_;
  std::set<std::string> granted_, denied_;
};

}  // namespace ddprun::membership
