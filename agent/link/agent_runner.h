// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <functional>
#include <optional>
#include <utility>

#include "agent/link/agent_machine.h"
#include "common/clock.h"

namespace ddprun::membership {

// Joins an AgentMachine with what every owner of one needs: one timer, and a queue. The events that
// an action causes are handled after the other actions of its event. Clock and timer are the
// owner's.
class AgentRunner {
 public:
  struct Hooks {
    std::function<Clock::time_point()> now;
    // May call handle(); that event is handled later.
    std::function<void(const AgentAction&)> perform;
    // Asks the owner to call handle(Timer{}) at this time instead of the one before; nullopt:
    // never. Only called when the time changes.
    std::function<void(std::optional<Clock::time_point>)> wake_at;
    BindStore bind_store;
  };

  AgentRunner(AgentOptions options, Hooks hooks)
      : hooks_(std::move(hooks)), machine_(std::move(options), hooks_.bind_store) {}

  // Handles the event, and those that its actions cause. Does nothing after drop().
  void handle(AgentEvent event) {
    if (dropped_) return;
    waiting_.push_back(std::move(event));
    if (handling_) return;
    handling_ = true;
    while (!waiting_.empty()) {
      const AgentEvent next = std::move(waiting_.front());
      waiting_.pop_front();
      if (variants::holds_alternative<agent_event::Timer>(next)) wake_at_.reset();  // it has fired
      for (const AgentAction& todo : machine_.step(next, hooks_.now())) {
        if (!dropped_) hooks_.perform(todo);
      }
    }
    handling_ = false;
    if (!dropped_) set_timer();
  }
  // Called when the owner is gone: no hook is called any more.
  void drop() {
    dropped_ = true;
    waiting_.clear();
  }

  const AgentMachine& machine() const { return machine_; }

 private:
  void set_timer() {
    const auto deadline = machine_.next_deadline();
    if (deadline == wake_at_) return;
    wake_at_ = deadline;
    hooks_.wake_at(deadline);
  }

  const Hooks hooks_;
  AgentMachine machine_;
  std::deque<AgentEvent> waiting_;
  std::optional<Clock::time_point> wake_at_;
  bool handling_ = false;
  bool dropped_ = false;
};

}  // namespace ddprun::membership
