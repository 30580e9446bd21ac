// SPDX-License-Identifier: Apache-2.0
// Seconds of all jobs by phase as counters, over all times that this process led. When a phase
// ends, a part of it may turn out to have been another one's (a hang that was noticed late): what
// was shown stays, until the sum has caught up with it. Pure.
#pragma once

#include <algorithm>

#include "rendezvous/membership/ledger.h"

namespace ddprun::rendezvous {

class FleetSeconds {
 public:
  using PhaseSeconds = membership::PhaseSeconds;

  // It begins to lead: what show() is given counts from zero again.
  void begin() { before_ = shown_; }

  // `since`: of what it has led since begin(). `running` has in it what was done again.
  const PhaseSeconds& show(const PhaseSeconds& since) {
    PhaseSeconds now = before_;
    now += since;
    now.running += since.redone;
    for (auto phase : {&PhaseSeconds::rendezvous, &PhaseSeconds::spawn, &PhaseSeconds::first_step,
                       &PhaseSeconds::running, &PhaseSeconds::redone, &PhaseSeconds::detect,
                       &PhaseSeconds::stop}) {
      shown_.*phase = std::max(shown_.*phase, now.*phase);
    }
    return shown_;
  }
  const PhaseSeconds& shown() const { return shown_; }

 private:
  PhaseSeconds before_, shown_;
};

}  // namespace ddprun::rendezvous
