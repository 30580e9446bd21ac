// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/membership/machine.h"

#include <exception>
#include <utility>

#include "common/exit_codes.h"
#include "common/log_level.h"
#include "common/peer_user.h"
#include "common/text.h"
#include "rendezvous/membership/job.h"
#include "rendezvous/membership/state.h"
#include "rendezvous/membership/verdicts.h"

namespace ddprun::membership {
namespace {

Refused try_again() {
  return {.message = "the rendezvous there is ending with an earlier job",
          .exit_code = static_cast<int>(ExitCode::kRetryable),
          .again = true};
}

bool is_of_another_user(const JobState& job, const ConnectionFacts& facts) {
  constexpr std::uint32_t kRoot = 0;
  return job.owner && facts.user && facts.user != kRoot && facts.user != job.owner;
}

}  // namespace

JobTable::JobTable(MachineOptions options, std::function<std::string()> new_session)
    : options_(std::move(options)),
      new_session_(std::move(new_session)),
      finished_(options_.keep_finished, options_.journalled) {}

JobTable::~JobTable() = default;

Actions JobTable::step(const Event& event, Clock::time_point now) {
  Actions out;
  if (const auto* message = variants::get_if<event::Message>(&event)) {
    Job* job = job_of(message->connection);
    const auto* join_message = variants::get_if<Join>(&message->envelope.message);
    if (job == nullptr && join_message != nullptr) {
      join(*message, *join_message, now, out);
    } else if (job == nullptr) {
      out.push_back(action::Log{LogLevel::kDebug, "a message from an agent that has no job"});
      out.push_back(action::Close{message->connection});
    } else if (!job->message(message->connection, message->envelope, now, out)) {
      job->closed(message->connection, now);
      connections_.erase(message->connection);
    }
  } else if (const auto* heard = variants::get_if<event::Heard>(&event)) {
    if (Job* job = job_of(heard->connection)) job->heard(heard->connection, now);
  } else if (const auto* closed = variants::get_if<event::Closed>(&event)) {
    if (Job* job = job_of(closed->connection)) job->closed(closed->connection, now);
    connections_.erase(closed->connection);
  } else if (const auto* lost = variants::get_if<event::StoreLost>(&event)) {
    if (Job* job = job_of(lost->connection)) job->store_lost(lost->connection, lost->why, now, out);
  } else {
    for (const auto& job : jobs_) job->tick(now, out);
  }
  drop_finished(now);
  finished_.drop_old(now);
  return out;
}

void JobTable::join(const event::Message& message, const Join& join, Clock::time_point now,
                    Actions& out) {
  const ConnectionId connection = message.connection;
  if (!common_version(join)) {
    const bool is_newer = join.oldest_version > kProtocolVersion;
    refuse(connection,
           {concat("the ddprun at ", message.facts.peer_addr, " speaks ",
                   to_string(VersionRange{join.oldest_version, join.version}),
                   " of the control protocol, the rendezvous ", to_string(kProtocolVersions),
                   ": install a newer ", is_newer ? "ddprund" : "ddprun", " (",
                   is_newer ? "rendezvous" : "agent", ")"),
            static_cast<int>(ExitCode::kUsage)},
           out);
    return;
  }
  Job* job = nullptr;
  const Job* other_static = nullptr;
  for (const auto& candidate : jobs_) {
    const bool same = candidate->state().run_id == join.run_id;
    if (same && candidate->knows(join)) {
      job = candidate.get();
      break;
    }
    if (same && candidate->takes_newcomers() && join.session.empty()) job = candidate.get();
    const JobSettings& settings = candidate->state().settings;
    const bool has_port = !same && !candidate->ended() && settings.rdzv_backend == kStaticBackend;
    if (has_port && !candidate->empty()) other_static = candidate.get();
  }
  if (job == nullptr && !join.session.empty()) {
    return refuse(
        connection,
        {concat("the rendezvous does not know this agent any more: it was given up as lost, job ",
                join.run_id, " has ended, or the rendezvous was restarted"),
         static_cast<int>(ExitCode::kRetryable)},
        out);
  }
  if (job == nullptr && closed_to_new_jobs_) return refuse(connection, try_again(), out);
  if (job == nullptr && join.settings.rdzv_backend == kStaticBackend && other_static != nullptr) {
    return refuse(connection, port_in_use(other_static->state(), join, message.facts), out);
  }
  if (message.facts.user == kNobody) {
    return refuse(
        connection,
        refused_usage(concat("it is not known whose program this node is: ", kUserNamespaceHint)),
        out);
  }
  if (job == nullptr) {
    job = &add(std::make_unique<Job>(options_, next_number_++, join, message.facts.user, now));
  } else if (is_of_another_user(job->state(), message.facts)) {
    return refuse(connection,
                  refused_usage(concat("job ", join.run_id, " is of user ", *job->state().owner,
                                       ", and without a token no other user's node can join it: "
                                       "give another --rdzv-id")),
                  out);
  }
  if (job->join(connection, message.facts, message.envelope, new_session_, now, out)) {
    connections_[connection] = job;
    hint_at_siblings(*job, now, out);
  }
}

Actions JobTable::close_to_new_jobs(Clock::time_point now) {
  closed_to_new_jobs_ = true;
  Actions out;
  for (const auto& job : jobs_) {
    if (job->awaits_first_round()) job->turn_away(try_again(), out);
  }
  drop_finished(now);
  return out;
}

// Made job ids hash the command, so nodes whose commands differ wait for each other as two jobs.
void JobTable::hint_at_siblings(Job& job, Clock::time_point now, Actions& out) {
  if (!job.awaits_first_round()) return;
  for (const auto& other : jobs_) {
    if (other.get() == &job || !other->awaits_first_round()) continue;
    if (!differ_in_hash_only(job.state().run_id, other->state().run_id)) continue;
    job.hint_at(*other, now, out);
    other->hint_at(job, now, out);
    return;
  }
}

void JobTable::refuse(ConnectionId connection, Refused refused, Actions& out) const {
  out.push_back(action::Log{LogLevel::kWarning, "refused an agent: " + refused.message});
  out.push_back(action::Send{connection, {0, 0, std::move(refused)}});
  out.push_back(action::Close{connection});
}

Job* JobTable::job_of(ConnectionId connection) {
  const auto found = connections_.find(connection);
  return found == connections_.end() ? nullptr : found->second;
}

void JobTable::drop_finished(Clock::time_point now) {
  for (const auto& job : jobs_) {
    if (!job->is_over()) continue;
    std::erase_if(connections_, [&](const auto& entry) { return entry.second == job.get(); });
    if (options_.journalled) job->erase_rows(erased_);
    if (job->state().record) finished_.add(job->number(), *job->state().record);
    ++num_dropped_;
    seconds_of_dropped_ += job->seconds(now);
  }
  std::erase_if(jobs_, [](const auto& job) { return job->is_over(); });
}

Job& JobTable::add(std::unique_ptr<Job> job) { return *jobs_.emplace_back(std::move(job)); }

std::optional<Clock::time_point> JobTable::next_deadline() const {
  std::optional<Clock::time_point> next = finished_.next_deadline();
  for (const auto& job : jobs_) keep_earlier(next, job->next_deadline());
  return next;
}

std::optional<Seat> JobTable::seat(ConnectionId connection) const {
  const auto found = connections_.find(connection);
  return found == connections_.end() ? std::nullopt : found->second->seat(connection);
}

bool JobTable::has_job(std::uint64_t number) const {
  return std::ranges::any_of(jobs_, [&](const auto& job) { return job->number() == number; });
}

// If several jobs have one name, only the last one lives.
Job* JobTable::job_named(const std::string& run_id) const {
  const auto found = std::find_if(jobs_.rbegin(), jobs_.rend(),
                                  [&](const auto& job) { return job->state().run_id == run_id; });
  return found == jobs_.rend() ? nullptr : found->get();
}

std::vector<TailRoute> JobTable::ask_for_tails(const std::string& run_id,
                                               const TailQuestion& question, Actions& out) {
  if (const Job* job = job_named(run_id)) return job->ask_for_tails(question, out);
  return std::vector<TailRoute>(question.global_ranks.size(),
                                {std::nullopt, "no job of that name runs here"});
}

std::optional<int> JobTable::num_ranks(const std::string& run_id) const {
  const Job* job = job_named(run_id);
  if (job == nullptr) return std::nullopt;
  const auto& rounds = job->state().ledger.rounds();
  return rounds.empty() ? 0 : rounds.back().world_size;
}

std::vector<JobStatus> JobTable::status() const {
  std::vector<JobStatus> all;
  for (const auto& job : jobs_) all.push_back(job->status());
  return all;
}

PhaseSeconds JobTable::seconds(Clock::time_point now) const {
  PhaseSeconds all = seconds_of_dropped_;
  for (const auto& job : jobs_) all += job->seconds(now);
  return all;
}

std::optional<double> JobStatus::ettr_at(Clock::time_point now) const {
  if (rounds.empty()) return std::nullopt;
  auto [its_phase, since, all] = lasting_at(now);
  if (its_phase != nullptr) {
    all.*its_phase += std::max(std::chrono::duration<double>(now - since).count(), 0.0);
  }
  return all.ettr();
}

JobStatus::Lasting JobStatus::lasting_at(Clock::time_point now) const {
  Lasting now_lasts{lasting, lasts_since, seconds};
  if (lasting != &PhaseSeconds::rendezvous || delayed_until <= lasts_since) return now_lasts;
  if (now < delayed_until) {
    now_lasts.phase = &PhaseSeconds::delay;
  } else {
    now_lasts.before.delay += std::chrono::duration<double>(delayed_until - lasts_since).count();
    now_lasts.since = delayed_until;
  }
  return now_lasts;
}

// ---- jobs that outlive the rendezvous process ----

journal::Batch JobTable::take_changes() {
  journal::Batch batch = std::exchange(erased_, {});
  finished_.take_changes(batch);
  for (const auto& job : jobs_) job->collect_changes(batch);
  return batch;
}

void JobTable::forget_rows(std::uint64_t job, journal::Rows& rows) {
  const std::string prefix = job_row_prefix(job);
  for (auto row = rows.lower_bound(prefix); row != rows.end() && row->first.starts_with(prefix);) {
    erased_.push_back({row->first, std::nullopt});
    row = rows.erase(row);
  }
}

Actions JobTable::restore(const journal::Rows& rows, Clock::duration clock_shift,
                          Clock::time_point now) {
  Actions out;
  std::uint64_t last_number = next_number_ - 1;
  for (const std::string& loss : finished_.restore(rows, clock_shift, now, last_number)) {
    out.emplace_back(action::Log{LogLevel::kError, loss});
  }
  next_number_ = last_number + 1;
  for (const auto& [number, of_job] : rows_by_job(rows)) {
    next_number_ = std::max(next_number_, number + 1);
    try {
      add(std::make_unique<Job>(options_, number, read_job(of_job, clock_shift), now, out));
    } catch (const std::exception& error) {  // of JSON, too
      const std::string what =
          concat("job number ", number, " of the journal is lost: ", error.what(),
                 "; its agents are refused and end with 75");
      out.emplace_back(action::Log{LogLevel::kError, what});
      for (const auto& [key, content] : of_job) {
        erased_.push_back({job_row_prefix(number) + key, std::nullopt});
      }
    }
  }
  drop_finished(now);
  finished_.drop_old(now);
  return out;
}

}  // namespace ddprun::membership
