// SPDX-License-Identifier: Apache-2.0
// Carries a plan of faults out: what was planned happens where it can, and is undone in time.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "bench/fleet/event_log.h"
#include "bench/fleet/fault_plan.h"
#include "bench/fleet/fleet.h"

namespace ddprun::bench {

class Storm {
 public:
  // `recovery`: a node that was in trouble may not be back before.
  Storm(std::vector<Fault> plan, World& world, Fleet& fleet, EventLog& log,
        std::chrono::milliseconds recovery)
      : plan_(std::move(plan)),
        world_(world),
        fleet_(fleet),
        log_(log),
        recovery_(recovery),
        troubles_(static_cast<std::size_t>(fleet.size())) {}

  // From now on, as planned.
  void begin();
  // Nothing happens any more, and what lasts ends.
  void end();

  int num_faults() const { return num_faults_; }
  // Whether something has been wrong with that node, or its way to the rendezvous, since then.
  bool troubled_since(int node, Clock::time_point then) const;

 private:
  struct Trouble {
    int num_cuts = 0, num_stills = 0;
    std::optional<Clock::time_point> last{};  // when it was so, and isn't any more
  };
  Trouble& trouble(int node) { return troubles_[static_cast<std::size_t>(node)]; }
  void happen(const Fault& fault);
  void fail_worker(int near);
  void kill(int near, bool power_loss);
  void cut(const Fault& fault);
  void heal(int node);
  void stand_still(const Fault& fault);
  void go_on(int node);
  bool may_trouble(int more);
  int next_that(int near, const std::function<bool(int)>& fits) const;

  const std::vector<Fault> plan_;
  World& world_;
  Fleet& fleet_;
  EventLog& log_;
  const std::chrono::milliseconds recovery_;
  std::vector<Trouble> troubles_;
  int num_faults_ = 0;
  bool over_ = false;
};

}  // namespace ddprun::bench
