// SPDX-License-Identifier: Apache-2.0
// Where the time of training steps goes, over ranks: of a node's, then of all nodes'. Its size
// doesn't grow with the ranks. Pure.
#pragma once

#include <boost/json/object.hpp>

#include "rendezvous/membership/json_fields.h"

namespace ddprun::membership {

// One figure of several ranks.
struct RankSpread {
  double mean = 0;
  double worst = 0;     // the largest
  int worst_rank = -1;  // whose that is, global; −1: of nobody

  friend bool operator==(const RankSpread&, const RankSpread&) = default;
};

// Seconds per step, of each rank over its last steps; what each part is: docs/ddp.md.
struct StepSummary {
  int num_ranks = 0;  // that told them; 0: the rest means nothing
  RankSpread step, forward, backward, communication, exposed, loader;
  double bytes_per_step = 0;  // the mean
  double least_overlap = 0;   // of the ranks that communicated
  int least_overlap_rank = -1;

  // Hidden ÷ all communication, of all ranks together; 0 where there was none.
  double overlap() const;

  friend bool operator==(const StepSummary&, const StepSummary&) = default;
};

// Of one rank. Values are finite and not below zero.
struct RankSteps {
  int global_rank = -1;
  double step = 0, forward = 0, backward = 0, communication = 0, exposed = 0, loader = 0;
  double bytes_per_step = 0;
};
StepSummary summary_of(const RankSteps& rank);

// `into` becomes that of both's ranks together. Of equal worst ranks the smaller one is named.
void add(StepSummary& into, const StepSummary& more);

// On the wire: {"ranks":2,"step":{"mean":0.04,"worst":0.05,"rank":1},…}.
boost::json::object step_summary_object(const StepSummary& summary);
// Throws Error(kProtocol) that names the field.
StepSummary read_step_summary(const JsonFields& in);

}  // namespace ddprun::membership
