// SPDX-License-Identifier: Apache-2.0
#include "agent/link/agent_runner.h"

#include <utility>

namespace ddprun::membership {

AgentRunner::AgentRunner(AgentOptions options, Hooks hooks)
    : hooks_(std::move(hooks)), machine_(std::move(options), hooks_.bind_store) {}

void AgentRunner::handle(AgentEvent event) {
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

void AgentRunner::drop() {
  dropped_ = true;
  waiting_.clear();
}

void AgentRunner::set_timer() {
  const auto deadline = machine_.next_deadline();
  if (deadline == wake_at_) return;
  wake_at_ = deadline;
  hooks_.wake_at(deadline);
}

}  // namespace ddprun::membership
