// SPDX-License-Identifier: Apache-2.0
// The half of AgentHub about the jobs: events go into the table, and what follows comes out again
// once it is kept.
#include <algorithm>
#include <boost/asio/post.hpp>
#include <iterator>
#include <utility>

#include "common/log.h"
#include "rendezvous/daemon/agent_hub.h"
#include "rendezvous/membership/codec.h"

namespace ddprun::rendezvous {

namespace asio = boost::asio;

void AgentHub::feed(membership::Event event) {
  pending_.push_back(std::move(event));
  feed_pending();
}

void AgentHub::feed_pending() {
  if (feeding_) return;
  feeding_ = true;
  const auto self = shared_from_this();
  while (!pending_.empty() && !stopped_) {
    const membership::Event next = std::move(pending_.front());
    pending_.pop_front();
    settle(table_.step(next, Clock::now()));
  }
  feeding_ = false;
  if (stopped_) return;
  drop_stores_of_finished();
  if (stores_.has_changes()) keep_stores();
  arm_tick();
  check_idle();
}

void AgentHub::settle(membership::Actions actions) {
  journal::Batch changes;
  if (options_.journal != nullptr) changes = table_.take_changes();
  const bool says_something = std::ranges::any_of(actions, [](const membership::Action& action) {
    return !variants::holds_alternative<membership::action::Log>(action);
  });
  if (!unkept_.must_wait(changes, says_something)) return perform(actions);
  if (changes.empty() && actions.empty()) return;
  unkept_.add(
      std::move(changes),
      [this, actions = std::move(actions)] {
        perform(actions);
        feed_pending();
      },
      shared_from_this());
}

void AgentHub::perform(const membership::Actions& actions) {
  for (const auto& action : actions) perform(action);
}

void AgentHub::restore(const journal::Content& content) {
  for (const std::string& loss : content.losses) log_error(loss);
  journal::Rows rows = content.rows;
  stores_.restore(rows, [&](std::uint64_t job, const std::string& why) {
    log_error("job number ", job, " of the journal is lost: ", why,
              "; its agents are refused and end with 75");
    table_.forget_rows(job, rows);
  });
  settle(table_.restore(rows, content.clock_shift, Clock::now()));
  stores_.keep_only([this](std::uint64_t job) { return table_.has_job(job); });
  feed_pending();
}

// Not at once, but as what the machine says: it confirms messages, which may not be kept yet.
membership::TailRoute AgentHub::ask_for_tail(const std::string& run_id, int global_rank,
                                             std::uint64_t request) {
  membership::Actions actions;
  auto route = table_.ask_for_tail(run_id, global_rank, request, actions);
  settle(std::move(actions));
  return route;
}

void AgentHub::perform(const membership::Action& action) {
  namespace act = membership::action;
  if (const auto* send = variants::get_if<act::Send>(&action)) {
    const auto found = agents_.find(send->connection);
    if (found != agents_.end()) found->second.frames->send(membership::encode(send->envelope));
  } else if (const auto* close = variants::get_if<act::Close>(&action)) {
    const auto found = agents_.find(close->connection);
    if (found == agents_.end()) return;
    found->second.frames->close_when_sent(kFlushLimit);
    forget(found);
    pending_.emplace_back(membership::event::Closed{close->connection});
  } else if (const auto* log = variants::get_if<act::Log>(&action)) {
    log_message(options_.quiet ? LogLevel::kDebug : log->level, log->text);
  } else if (const auto* started = variants::get_if<act::RoundStarted>(&action)) {
    options_.round_started(*started);
  } else if (const auto* ended = variants::get_if<act::RoundOver>(&action)) {
    options_.round_over(*ended);
  } else if (const auto* over = variants::get_if<act::JobOver>(&action)) {
    options_.job_over(*over);
  } else if (const auto* said = variants::get_if<act::TailSaid>(&action)) {
    if (options_.tail_said) options_.tail_said(*said);
  }
}

void AgentHub::arm_tick() {
  const auto deadline = table_.next_deadline();
  if (deadline == armed_for_) return;
  armed_for_ = deadline;
  if (!deadline) {
    tick_timer_.cancel();
    return;
  }
  tick_timer_.expires_at(*deadline);
  tick_timer_.async_wait([self = shared_from_this()](boost::system::error_code error) {
    if (error || self->stopped_) return;
    self->armed_for_.reset();
    self->feed(membership::event::Tick{});
  });
}

void AgentHub::when_idle(std::optional<std::chrono::milliseconds> timeout,
                         std::function<void()> done) {
  idle_done_ = std::move(done);
  if (timeout) {
    idle_timer_.expires_after(*timeout);
    idle_timer_.async_wait([self = shared_from_this()](boost::system::error_code error) {
      if (error || !self->idle_done_) return;
      const auto ready = std::exchange(self->idle_done_, nullptr);
      ready();
    });
  }
  settle(table_.close_to_new_jobs(Clock::now()));
  feed(membership::event::Tick{});
}

void AgentHub::check_idle() {
  if (!idle_done_ || !table_.idle() || !unkept_.empty()) return;
  idle_timer_.cancel();
  asio::post(tick_timer_.get_executor(), [self = shared_from_this()] {
    const auto ready = std::exchange(self->idle_done_, nullptr);
    if (ready) ready();
  });
}

void AgentHub::when_stores_unused(std::chrono::milliseconds limit, std::function<void()> done) {
  stores_unused_ = std::move(done);
  idle_timer_.expires_after(limit);
  idle_timer_.async_wait([self = shared_from_this()](boost::system::error_code error) {
    if (!error && self->stores_unused_) std::exchange(self->stores_unused_, nullptr)();
  });
  say_if_stores_unused();
}

void AgentHub::say_if_stores_unused() {
  if (!stores_unused_ || stores_.in_use()) return;
  idle_timer_.cancel();
  asio::post(tick_timer_.get_executor(), [self = shared_from_this()] {
    if (self->stores_unused_) std::exchange(self->stores_unused_, nullptr)();
  });
}

}  // namespace ddprun::rendezvous
