// SPDX-License-Identifier: Apache-2.0
// What each of a pair of ddprunds knows of itself, and tells the other one when they meet
// (docs/ha-standby.md). Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/membership/term_line.h"

namespace ddprun::ha {

// One span of leading.
struct TermId {
  std::string id;            // 32 hexadecimal digits, random
  std::uint64_t number = 0;  // for people

  friend bool operator==(const TermId&, const TermId&) = default;
};

// Ids of terms, newest first: those that one goes on from, its own before them.
using TermLine = std::vector<std::string>;
using membership::kMaxTermLine;

bool has_term(const TermLine& line, std::string_view id);

// Whose the rows of a journal are.
enum class RowsKind {
  kEmpty,   // nobody's: a new journal
  kLeads,   // its own: it leads, or led last
  kSynced,  // a leader's, all that it has told anybody
  kCopy,    // a leader's, but not all, or not any more: nobody may lead with them
};

struct PairState {
  std::string name;       // HOST:PORT, for people
  bool is_first = false;  // of the pair: by its flag
  bool leads = false;     // now
  RowsKind rows = RowsKind::kEmpty;
  TermId term;    // of kLeads, kSynced
  TermLine line;  // of `term`, begins with it
  // Leads: jobs that are won, begun and not over. Else: jobs in the rows that are not over.
  std::uint64_t num_jobs = 0;
  std::uint64_t num_held = 0;  // leads: jobs that it has not won yet
  TermLine given_up;
  // Stands by: its journal can't be written, or may lack its end. Not told (as_told()).
  bool distrusts_disk = false;
  bool has_lost_rows = false;  // kCopy: for its journal was damaged; not told

  friend bool operator==(const PairState&, const PairState&) = default;
};

// What the other one is told: rows that are not to be led with yet are a copy.
PairState as_told(PairState own);

}  // namespace ddprun::ha
