// SPDX-License-Identifier: Apache-2.0
#include "tests/rendezvous/membership/world/world_rendezvous.h"

#include <algorithm>
#include <utility>

#include "common/log_level.h"
#include "common/text.h"
#include "rendezvous/messages/codec.h"
#include "tests/rendezvous/membership/world/late_messages.h"

namespace ddprun::membership::testing {

WorldRendezvous::WorldRendezvous(Options options)
    : options_(std::move(options)), check_(options_.looks_always), table_(make_table()) {}

std::unique_ptr<JobTable> WorldRendezvous::make_table() {
  MachineOptions options;
  options.journalled = options_.journalled;
  options.keep_finished = options_.keep_finished;
  return std::make_unique<JobTable>(options,
                                    [this] { return concat("session-", ++num_sessions_); });
}

void WorldRendezvous::violated_if(const std::optional<std::string>& wrong) const {
  if (wrong) options_.violated(*wrong);
}

Actions WorldRendezvous::step(const Event& event, Clock::time_point now, bool is_late) {
  Event given = event;
  std::string type, before;  // the state before an event that must change nothing
  if (auto* message = variants::get_if<event::Message>(&given)) {
    check_.heard(*message);
    const std::uint64_t* round = round_of(message->envelope.message);
    const auto live = check_.live_round_of(message->connection);
    const bool is_stale = (round != nullptr && live && *round != *live) ||
                          variants::holds_alternative<Tail>(message->envelope.message);
    if (is_late || is_stale) {
      type = type_of(message->envelope.message);
      before = TableCheck::fingerprint(*table_);
    }
    plant_in(*message);
  } else if (const auto* closed = variants::get_if<event::Closed>(&given)) {
    check_.closed(closed->connection);
  }
  Actions actions = table_->step(given, now);
  if (options_.journalled) keep();
  plant_in(actions);
  if (!type.empty()) {
    const auto wrong = TableCheck::ignored(before, *table_, actions, !is_late);
    if (wrong) options_.violated(concat("a late ", type, " of an old round: ", *wrong));
  }
  violated_if(check_.stepped(*table_, given, actions, now));
  violated_if(TableCheck::waits(*table_, next_deadline()));
  return actions;
}

void WorldRendezvous::restart(Clock::time_point now) {
  const std::string before = TableCheck::kept_text(*table_, options_.keep_finished, now);
  check_.restarted();
  table_ = make_table();
  for (const Action& action : table_->restore(journal_, Clock::duration::zero(), now)) {
    const auto* log = variants::get_if<action::Log>(&action);
    if (log != nullptr && log->level == LogLevel::kError) options_.violated(log->text);
  }
  keep();
  const std::string after = TableCheck::kept_text(*table_, options_.keep_finished, now);
  if (after != before) options_.violated(concat("was ", before, " before, and after ", after));
  violated_if(TableCheck::waits(*table_, next_deadline()));
}

void WorldRendezvous::keep() {
  journal::apply_batch(table_->take_changes(), journal_);
  const std::size_t num_finished = table_->finished().size();
  // Keys are in order, so those of finished jobs lie together.
  const auto begin = journal_.lower_bound("finished/");
  const auto num_kept = std::distance(
      begin, std::find_if(begin, journal_.end(),
                          [](const auto& row) { return !row.first.starts_with("finished/"); }));
  if (num_kept != static_cast<std::ptrdiff_t>(num_finished)) {
    options_.violated(
        concat("the journal has ", num_kept, " jobs that are over, the rendezvous ", num_finished));
  }
  if (table_->idle() && journal_.size() > num_finished) {
    options_.violated("the journal keeps row " + journal_.begin()->first +
                      " of a job that is gone");
  }
}

TailRoute WorldRendezvous::ask_for_tail(const std::string& run_id, int global_rank,
                                        std::uint64_t request, TailKind kind, Actions& out) {
  const std::string before = TableCheck::fingerprint(*table_);
  const TailRoute route =
      table_->ask_for_tails(run_id, {{global_rank}, request, kind}, out).front();
  if (options_.journalled && !table_->take_changes().empty()) {
    options_.violated("a question for a rank's output is kept");
  }
  if (TableCheck::fingerprint(*table_) != before) options_.violated("a question changed the job");
  violated_if(check_.asked_for_tail(run_id, request, route, out));
  return route;
}

std::optional<Clock::time_point> WorldRendezvous::next_deadline() const {
  const auto deadline = table_->next_deadline();
  const bool is_planted =
      options_.bug.kind == PlantedBug::Kind::kNoDeadline &&
      std::ranges::any_of(table_->status(), [](const JobStatus& job) { return job.round > 1; });
  return is_planted ? std::nullopt : deadline;
}

void WorldRendezvous::plant_in(event::Message& message) const {
  if (options_.bug.kind == PlantedBug::Kind::kBudget) {
    auto* join = variants::get_if<Join>(&message.envelope.message);
    if (join != nullptr) ++join->settings.max_restarts;
  } else if (options_.bug.kind == PlantedBug::Kind::kStaleMessage &&
             options_.bug.message == type_of(message.envelope.message)) {
    const auto live = check_.live_round_of(message.connection);
    std::uint64_t* round = round_of(message.envelope.message);
    if (live && round != nullptr) *round = *live;
  }
}

void WorldRendezvous::plant_in(Actions& actions) {
  using Kind = PlantedBug::Kind;
  const Kind kind = options_.bug.kind;
  if (has_shown_) return;
  for (Action& each : actions) {
    auto* send = variants::get_if<action::Send>(&each);
    if (send == nullptr) continue;
    auto* start = variants::get_if<StartRound>(&send->envelope.message);
    auto* end = variants::get_if<JobEnd>(&send->envelope.message);
    const bool is_second = start != nullptr && start->round > 1 && start->node_rank == 1;
    if (is_second && kind == Kind::kRankTwice) {
      start->node_rank = start->first_global_rank = 0;
      has_shown_ = true;
    } else if (is_second && kind == Kind::kRankMissing) {
      each = action::Log{};
      has_shown_ = true;
    } else if (end != nullptr && kind == Kind::kOtherVerdict) {
      end->exit_code = 3;
      has_shown_ = true;
    }
    if (has_shown_) return;
  }
}

}  // namespace ddprun::membership::testing
