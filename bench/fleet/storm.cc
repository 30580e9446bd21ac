// SPDX-License-Identifier: Apache-2.0
#include "bench/fleet/storm.h"

namespace ddprun::bench {

using Kind = Fault::Kind;

void Storm::begin() {
  for (const Fault& fault : plan_) {
    world_.at(world_.now() + fault.at, [this, &fault] {
      if (!over_) happen(fault);
    });
  }
}

void Storm::end() {
  over_ = true;
  for (int node = 0; node < fleet_.size(); ++node) {
    Trouble& here = trouble(node);
    if (here.num_cuts > 0) world_.heal(node);
    if (here.num_stills > 0) world_.go_on(node);
    if (here.num_cuts + here.num_stills > 0) here.last = world_.now();
    here.num_cuts = here.num_stills = 0;
  }
}

void Storm::happen(const Fault& fault) {
  switch (fault.kind) {
    case Kind::kWorkerFails:
      return fail_worker(fault.nodes.front());
    case Kind::kAgentKilled:
    case Kind::kPowerLoss:
      return kill(fault.nodes.front(), fault.kind == Kind::kPowerLoss);
    case Kind::kPartition:
      return cut(fault);
    case Kind::kStandStill:
      return stand_still(fault);
    case Kind::kLateMessage:
      return world_.say_late(fault.nodes.front(), fault.draw % 2 == 0, fault.draw / 2);
  }
}

// The first node from `near` on; −1: none.
int Storm::next_that(int near, const std::function<bool(int)>& fits) const {
  for (int i = 0; i < fleet_.size(); ++i) {
    const int node = (near + i) % fleet_.size();
    if (fits(node)) return node;
  }
  return -1;
}

// The job needs somebody to go on.
bool Storm::may_trouble(int more) {
  int num_well = 0;
  for (int node = 0; node < fleet_.size(); ++node) {
    num_well += fleet_.is_in(node) && !troubled_since(node, world_.now() - recovery_) ? 1 : 0;
  }
  return num_well - more > fleet_.size() / 2;
}

void Storm::fail_worker(int near) {
  const int node = next_that(near, [&](int each) {
    const EmulatedNode* candidate = world_.node(each);
    return candidate != nullptr && !candidate->dead() && candidate->runs() &&
           trouble(each).num_stills == 0;
  });
  if (node < 0) return;
  ++num_faults_;
  log_.note(world_.now(), node, to_string(Kind::kWorkerFails));
  world_.node(node)->fail(1);
}

void Storm::kill(int near, bool power_loss) {
  const int node = next_that(near, [&](int each) { return fleet_.is_in(each); });
  if (node < 0 || !may_trouble(1)) return;
  ++num_faults_;
  log_.note(world_.now(), node, to_string(power_loss ? Kind::kPowerLoss : Kind::kAgentKilled));
  fleet_.went_out(node);
  world_.kill(node, power_loss);
  fleet_.begin_again(node);
}

void Storm::cut(const Fault& fault) {
  if (!may_trouble(static_cast<int>(fault.nodes.size()))) return;
  ++num_faults_;
  for (const int node : fault.nodes) {
    log_.note(world_.now(), node,
              fault.up && fault.down ? "it is cut off"
              : fault.up             ? "what it says is held up"
                                     : "what it is told is held up");
    ++trouble(node).num_cuts;
    world_.cut(node, fault.up, fault.down);
    world_.at(world_.now() + fault.lasts, [this, node] {
      if (!over_) heal(node);
    });
  }
}

bool Storm::troubled_since(int node, Clock::time_point then) const {
  const Trouble& here = troubles_[static_cast<std::size_t>(node)];
  return here.num_cuts + here.num_stills > 0 || (here.last && *here.last >= then);
}

void Storm::heal(int node) {
  trouble(node).last = world_.now();
  if (--trouble(node).num_cuts > 0) return;
  log_.note(world_.now(), node, "its connection is whole again");
  world_.heal(node);
}

void Storm::stand_still(const Fault& fault) {
  const int node = fault.nodes.front();
  if (!fleet_.is_in(node) || !may_trouble(1)) return;
  ++num_faults_;
  log_.note(world_.now(), node, to_string(Kind::kStandStill));
  ++trouble(node).num_stills;
  world_.stand_still(node);
  world_.at(world_.now() + fault.lasts, [this, node] {
    if (!over_) go_on(node);
  });
}

void Storm::go_on(int node) {
  trouble(node).last = world_.now();
  if (--trouble(node).num_stills > 0) return;
  log_.note(world_.now(), node, "its ddprun goes on");
  world_.go_on(node);
}

}  // namespace ddprun::bench
