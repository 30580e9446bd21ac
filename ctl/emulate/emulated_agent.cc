// SPDX-License-Identifier: Apache-2.0
#include "ctl/emulate/emulated_agent.h"

#include <boost/asio/post.hpp>
#include <utility>
#include <variant>

namespace ddprun::ctl {

namespace event = membership::agent_event;
namespace action = membership::agent_action;

EmulatedAgent::EmulatedAgent(boost::asio::io_context& io, EmulatedAgentOptions options,
                             EmulatedAgentEvents events)
    : options_(std::move(options)),
      events_(std::move(events)),
      machine_(options_.machine),
      link_(io, options_.machine.endpoint,
            [this](const membership::AgentEvent& link_event) { handle(link_event); }),
      machine_timer_(io),
      workers_timer_(io),
      num_workers_(options_.machine.join.num_workers) {}

void EmulatedAgent::start() { handle(event::Start{}); }

void EmulatedAgent::succeed() {
  if (live_round_) handle(event::WorkersSucceeded{*live_round_});
}

void EmulatedAgent::fail(int exit_code) {
  if (!live_round_) return;
  membership::WorkerFailure failure;
  failure.global_rank = first_global_rank_;
  failure.local_rank = 0;
  failure.node_rank = node_rank_;
  failure.host = options_.machine.join.host;
  failure.exit_code = exit_code;
  handle(event::WorkerFailed{*live_round_, failure});
}

void EmulatedAgent::vanish() {
  vanished_ = true;
  live_round_.reset();
  machine_timer_.cancel();
  workers_timer_.cancel();
  link_.close();
}

void EmulatedAgent::handle(const membership::AgentEvent& next) {
  if (vanished_) return;
  waiting_.push_back(next);
  if (handling_) return;
  handling_ = true;
  while (!waiting_.empty() && !vanished_) {
    const membership::AgentEvent current = std::move(waiting_.front());
    waiting_.pop_front();
    if (const auto* heard = std::get_if<event::LinkMessage>(&current)) {
      if (std::holds_alternative<membership::Welcome>(heard->envelope.message)) events_.welcomed();
    }
    for (const membership::AgentAction& todo : machine_.step(current, Clock::now())) {
      if (!vanished_) perform(todo);
    }
  }
  handling_ = false;
  if (!vanished_) arm_timer();
}

void EmulatedAgent::perform(const membership::AgentAction& todo) {
  if (const auto* connect = std::get_if<action::Connect>(&todo)) {
    link_.connect(connect->timeout);
  } else if (std::holds_alternative<action::CloseLink>(todo)) {
    link_.close();
  } else if (const auto* send = std::get_if<action::Send>(&todo)) {
    link_.send(send->envelope);
  } else if (const auto* keep = std::get_if<action::SetKeepAlive>(&todo)) {
    link_.set_keep_alive(keep->timeout, keep->interval);
  } else if (std::holds_alternative<action::BindStore>(todo)) {
    handle(event::StoreBound{1});  // nobody connects to it
  } else if (const auto* spawn = std::get_if<action::Spawn>(&todo)) {
    const std::uint64_t round = spawn->round.round;
    live_round_ = round;
    node_rank_ = spawn->round.node_rank;
    first_global_rank_ = spawn->round.first_global_rank;
    events_.started(spawn->round);
    after(options_.spawn_time, [this, round] {
      handle(event::WorkersRunning{round});
      events_.running();
    });
  } else if (std::holds_alternative<action::StopWorkers>(todo)) {
    const std::uint64_t round = live_round_.value_or(0);
    events_.told_to_stop();
    after(options_.stop_time, [this, round] {
      live_round_.reset();
      events_.stopped();
      handle(event::WorkersGone{round});
    });
  } else if (const auto* exit = std::get_if<action::Exit>(&todo)) {
    events_.exited(*exit);
  }
}

void EmulatedAgent::after(std::chrono::milliseconds time, std::function<void()> then) {
  workers_timer_.expires_after(time);  // what was under way before is overtaken
  workers_timer_.async_wait([this, then = std::move(then)](const boost::system::error_code& error) {
    if (!error && !vanished_) then();
  });
}

void EmulatedAgent::arm_timer() {
  const auto deadline = machine_.next_deadline();
  if (machine_.exited() || !deadline) {
    machine_timer_.cancel();
    return;
  }
  if (machine_timer_.expiry() == *deadline) return;
  machine_timer_.expires_at(*deadline);
  machine_timer_.async_wait([this](const boost::system::error_code& error) {
    if (!error) handle(event::Timer{});
  });
}

}  // namespace ddprun::ctl
