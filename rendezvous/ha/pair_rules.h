// SPDX-License-Identifier: Apache-2.0
// Who of a pair of ddprunds leads, mirrors, waits or yields, and in which term: the tables of
// docs/ha-standby.md as functions. Pure: no I/O, clock, thread or randomness.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

#include "rendezvous/ha/leader_rows.h"
#include "rendezvous/ha/pair_state.h"
#include "rendezvous/journal/row.h"
#include "rendezvous/membership/held_jobs.h"

namespace ddprun::ha {

enum class PairMove {
  kWait,    // as it is: stands by, or leads
  kMirror,  // the other one leads: its rows replace this side's
  kLead,    // begins to lead with the rows that it has
  kYield,   // ends leading: the other one leads, too
};

struct Decision {
  PairMove move = PairMove::kWait;
  std::string why;        // for people; names the other one
  bool is_stuck = false;  // kWait: and so does the other one; a person has to do something

  friend bool operator==(const Decision&, const Decision&) = default;
};

// They meet: what the caller does, by its own state as it is now and what the other one has just
// said. `yielded_to`: the newest term that this process has yielded to; empty: none. A side that
// stands by, and has led in this process's life, says that its rows are kSynced.
Decision decide(const PairState& mine, const PairState& theirs, std::string_view yielded_to);

// Of two that lead: nothing is lost where `mine` ends leading.
bool can_yield(const PairState& mine, const PairState& theirs);

// Of one that stands by.
struct Alone {
  // Nothing listens there, and this process was in sync with the leader that did; or that has
  // handed over.
  bool is_certain = false;
  bool is_refused = false;  // somebody is there, and can't be talked to
  std::chrono::milliseconds lease{3'000};
};
// How long nothing must have been heard of the other one, in this process's life, until it leads;
// nullopt: it waits, however long.
std::optional<std::chrono::milliseconds> patience(const PairState& mine, const Alone& alone);

// With which term a side leads that has these rows.
struct TermPlan {
  TermRow row;
  membership::Terms terms;
  bool goes_on = false;  // it is the term that it led in before: nobody else can have gone on
};
// `id` is of a new term, should one begin. `rows_before`: the rows of jobs before the last batch,
// where the rows are kSynced. The rows are not a copy.
TermPlan plan_term(const LeaderRows& rows, const std::string& id,
                   std::optional<journal::Rows> rows_before);
// All that the journal has to keep before anybody is told of the term: one commit. `clock` is that
// of the points in time in the rows.
journal::Batch rows_to_begin(const TermPlan& plan, const journal::Rows& rows,
                             const membership::RowsClock& clock);

}  // namespace ddprun::ha
