// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <functional>
#include <optional>

#include "agent/link/agent_machine.h"
#include "common/clock.h"

namespace ddprun::membership {

// AgentMachine and what every owner of one needs: one timer, and a queue. The queue puts an
// action's own events after the actions of the event before. Clock and timer are the owner's.
class AgentRunner {
 public:
  struct Hooks {
    std::function<Clock::time_point()> now;
    // May call handle(): that event's turn comes later.
    std::function<void(const AgentAction&)> perform;
    // Call handle(Timer{}) then, instead of at the time that was named last; nullopt: never. Only
    // called when it changes.
    std::function<void(std::optional<Clock::time_point>)> wake_at;
    BindStore bind_store;
  };

  AgentRunner(AgentOptions options, Hooks hooks);

  // The event, and those that its actions cause. After drop() nothing.
  void handle(AgentEvent event);
  // The owner is gone: no hook is called any more.
  void drop();

  const AgentMachine& machine() const { return machine_; }

 private:
  void set_timer();

  const Hooks hooks_;
  AgentMachine machine_;
  std::deque<AgentEvent> waiting_;
  std::optional<Clock::time_point> wake_at_;
  bool handling_ = false;
  bool dropped_ = false;
};

}  // namespace ddprun::membership
