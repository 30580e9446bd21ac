// SPDX-License-Identifier: Apache-2.0
// The half of AgentHub about the jobs: events in, through those that are held into the table, and
// what follows out again, once it is kept.
#include <algorithm>
#include <boost/asio/post.hpp>
#include <iterator>
#include <utility>

#include "common/boot_id.h"
#include "common/log.h"
#include "rendezvous/daemon/agent_hub.h"
#include "rendezvous/membership/codec.h"

namespace ddprun::rendezvous {

namespace asio = boost::asio;

namespace {
void append_new(std::vector<std::string>& line, const std::vector<std::string>& terms) {
  for (const std::string& term : terms) {
    if (std::ranges::count(line, term) == 0) line.push_back(term);
  }
}
}  // namespace

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
    step(next);
  }
  feeding_ = false;
  if (stopped_) return;
  drop_stores_of_finished();
  if (stores_.has_changes()) keep_stores();
  arm_tick();
  check_idle();
}

void AgentHub::step(const membership::Event& event) {
  if (held_) {
    auto outcome = held_->step(event, Clock::now());
    const bool passes = outcome.passes;
    take_from_held(std::move(outcome));
    if (!passes) return;
  }
  step_table(event);
}

void AgentHub::step_table(const membership::Event& event) {
  const auto* message = std::get_if<membership::event::Message>(&event);
  if (message == nullptr || !is_sent_on(*message)) {
    return settle(table_.step(event, Clock::now()));
  }
  settle({membership::action::Close{message->connection}});
}

// The job may be at the other rendezvous, and begun: the agent's next endpoint may be that one.
bool AgentHub::is_sent_on(const membership::event::Message& message) {
  constexpr std::size_t kMostSentOn = 10'000;
  const auto* join = std::get_if<membership::Join>(&message.envelope.message);
  if (hears_peer_ || join == nullptr || sent_on_.size() >= kMostSentOn) return false;
  if (!table_.would_begin(*join)) return false;
  return sent_on_.insert(concat(join->run_id, '\0', join->instance)).second;
}

void AgentHub::hear_peer(bool is_heard) {
  hears_peer_ = is_heard;
  if (is_heard) sent_on_.clear();
  if (held_) held_->hear_peer(is_heard);
}

void AgentHub::take_from_held(membership::HeldJobs::Outcome outcome) {
  table_.add_changes(std::move(outcome.changes));
  settle(std::move(outcome.actions));
  for (auto& job : outcome.restored) restore_rows(std::move(job.rows), job.clock_shift);
  for (auto& join : outcome.joins) step_table(std::move(join));
}

void AgentHub::settle(membership::Actions actions) {
  journal::Batch changes;
  if (options_.journal != nullptr) changes = table_.take_changes();
  has_begun_round_ |= std::ranges::any_of(actions, [](const membership::Action& action) {
    return std::holds_alternative<membership::action::RoundStarted>(action);
  });
  const bool says_something = std::ranges::any_of(actions, [](const membership::Action& action) {
    return !std::holds_alternative<membership::action::Log>(action);
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

void AgentHub::restore(const journal::Content& content,
                       const std::optional<membership::Terms>& terms) {
  for (const std::string& loss : content.losses) log_error(loss);
  journal::Rows rows = content.rows;
  if (terms) {
    line_ = terms->bases;
    const membership::RowsClock clock{content.clock_shift, boot_id()};
    held_.emplace(*terms, rows, clock, Clock::now());
    table_.reserve_numbers(held_->last_number());
  }
  restore_rows(std::move(rows), content.clock_shift);
  if (held_) take_from_held(held_->begin());
  feed_pending();
}

void AgentHub::add_bases(const std::vector<std::string>& terms) {
  std::vector<std::string> line = terms;  // the newest
  append_new(line, line_);
  line_ = std::move(line);
  if (held_) take_from_held(held_->add_bases(terms));
  feed_pending();
}

void AgentHub::restore_rows(journal::Rows rows, Clock::duration clock_shift) {
  stores_.restore(rows, [&](std::uint64_t job, const std::string& why) {
    log_error("job number ", job, " of the journal is lost: ", why,
              "; its agents are refused and end with 75");
    table_.forget_rows(job, rows);
  });
  settle(table_.restore(rows, clock_shift, Clock::now()));
  stores_.keep_only([this](std::uint64_t job) { return table_.has_job(job); });
}

std::vector<membership::JobStatus> AgentHub::status() const {
  std::vector<membership::JobStatus> all = table_.status();
  if (held_) std::ranges::move(held_->status(), std::back_inserter(all));
  return all;
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
  if (const auto* send = std::get_if<act::Send>(&action)) {
    const auto found = agents_.find(send->connection);
    if (found != agents_.end()) found->second.frames->send(encoded(send->envelope));
  } else if (const auto* close = std::get_if<act::Close>(&action)) {
    const auto found = agents_.find(close->connection);
    if (found == agents_.end()) return;
    found->second.frames->close_when_sent(kFlushLimit);
    forget(found);
    pending_.emplace_back(membership::event::Closed{close->connection});
  } else if (const auto* log = std::get_if<act::Log>(&action)) {
    log_message(options_.quiet ? LogLevel::kDebug : log->level, log->text);
  } else if (const auto* started = std::get_if<act::RoundStarted>(&action)) {
    options_.round_started(*started);
  } else if (const auto* ended = std::get_if<act::RoundOver>(&action)) {
    options_.round_over(*ended);
  } else if (const auto* over = std::get_if<act::JobOver>(&action)) {
    options_.job_over(*over);
  } else if (const auto* said = std::get_if<act::TailSaid>(&action)) {
    if (options_.tail_said) options_.tail_said(*said);
  }
}

void AgentHub::arm_tick() {
  auto deadline = table_.next_deadline();
  if (held_) keep_earlier(deadline, held_->next_deadline());
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
  if (!idle_done_ || !table_.idle() || num_held() > 0 || !unkept_.empty()) return;
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
