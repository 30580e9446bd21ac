// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/membership/machine.h"

#include <exception>

#include "common/exit_codes.h"
#include "common/peer_user.h"
#include "common/text.h"
#include "rendezvous/membership/job.h"
#include "rendezvous/membership/job_index.h"
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
      jobs_(std::make_unique<JobIndex>()),
      finished_(options_.keep_finished, options_.journalled) {}

JobTable::~JobTable() = default;

Actions JobTable::step(const Event& event, Clock::time_point now) {
  Actions out;
  if (const auto* message = variants::get_if<event::Message>(&event)) {
    Job* job = jobs_->at(message->connection);
    const auto* join_message = variants::get_if<Join>(&message->envelope.message);
    if (job == nullptr && join_message != nullptr) {
      join(*message, *join_message, now, out);
    } else if (job == nullptr) {
      out.push_back(action::Log{LogLevel::kDebug, "a message from an agent that has no job"});
      out.push_back(action::Close{message->connection});
    } else {
      if (!job->message(message->connection, message->envelope, now, out)) {
        job->closed(message->connection, now);
        jobs_->disconnect(message->connection);
      }
      settle(*job, now);
    }
  } else if (const auto* heard = variants::get_if<event::Heard>(&event)) {
    // A ping changes nothing that settle() looks at.
    if (Job* job = jobs_->at(heard->connection)) job->heard(heard->connection, now);
  } else if (const auto* closed = variants::get_if<event::Closed>(&event)) {
    if (Job* job = jobs_->at(closed->connection)) {
      job->closed(closed->connection, now);
      jobs_->disconnect(closed->connection);
      settle(*job, now);
    }
  } else if (const auto* lost = variants::get_if<event::StoreLost>(&event)) {
    if (Job* job = jobs_->at(lost->connection)) {
      job->store_lost(lost->connection, lost->why, now, out);
      settle(*job, now);
    }
  } else {
    for (Job* job : jobs_->due(now, kJobsPerTick)) {
      job->tick(now, out);
      settle(*job, now);
    }
  }
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
  for (Job* candidate : jobs_->named(join.run_id)) {
    if (candidate->knows(join)) {
      job = candidate;
      break;
    }
    if (candidate->takes_newcomers() && join.session.empty()) job = candidate;
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
  if (job == nullptr && is_static(join.settings)) {
    const Job* holder = jobs_->holder_of_port(join.run_id);
    if (holder != nullptr) {
      return refuse(connection, port_in_use(holder->state(), join, message.facts), out);
    }
  }
  if (message.facts.user == kNobody) {
    return refuse(
        connection,
        refused_usage(concat("it is not known whose program this node is: ", kUserNamespaceHint)),
        out);
  }
  if (job == nullptr) {
    const std::string client = client_of(message.facts);
    if (jobs_->num_of(client) >= options_.max_jobs_per_client) {
      return refuse(connection, too_many_jobs(client, options_.max_jobs_per_client), out);
    }
    job = &jobs_->add(
        std::make_unique<Job>(options_, next_number_++, join, message.facts.user, now), client);
  } else if (is_of_another_user(job->state(), message.facts)) {
    return refuse(connection,
                  refused_usage(concat("job ", join.run_id, " is of user ", *job->state().owner,
                                       ", and without a token no other user's node can join it: "
                                       "give another --rdzv-id")),
                  out);
  }
  if (job->join(connection, message.facts, message.envelope, new_session_, now, out)) {
    jobs_->connect(connection, *job);
    hint_at_siblings(*job, now, out);
  }
  settle(*job, now);
}

Actions JobTable::close_to_new_jobs(Clock::time_point now) {
  closed_to_new_jobs_ = true;
  Actions out;
  for (Job *job = jobs_->after(0), *next = nullptr; job != nullptr; job = next) {
    next = jobs_->after(job->number());
    if (!job->awaits_first_round()) continue;
    job->turn_away(try_again(), out);
    settle(*job, now);
  }
  return out;
}

// A made job id has a hash of the command. So nodes whose commands differ wait for each other in
// two jobs.
void JobTable::hint_at_siblings(Job& job, Clock::time_point now, Actions& out) {
  if (!job.awaits_first_round()) return;
  Job* other = jobs_->sibling_of(job);
  if (other == nullptr) return;
  job.hint_at(*other, now, out);
  other->hint_at(job, now, out);
  settle(*other, now);
}

void JobTable::refuse(ConnectionId connection, Refused refused, Actions& out) const {
  out.push_back(action::Log{LogLevel::kWarning, "refused an agent: " + refused.message, true});
  out.push_back(action::Send{connection, {0, 0, std::move(refused)}});
  out.push_back(action::Close{connection});
}

// Called after each change of a job. Drops a job that is over.
void JobTable::settle(Job& job, Clock::time_point now) {
  if (!job.is_over()) {
    if (options_.journalled) changed_.insert(job.number());
    return jobs_->update(job);
  }
  JobIndex::Removed removed = jobs_->remove(job);
  changed_.erase(job.number());
  if (options_.journalled) job.erase_rows(erased_);
  if (job.state().record) finished_.add(job.number(), *job.state().record);
  seconds_of_dropped_ += job.seconds(now);
  dropped_.push_back({job.number(), std::move(removed.connections)});
}

std::optional<Clock::time_point> JobTable::next_deadline() const {
  std::optional<Clock::time_point> next = finished_.next_deadline();
  keep_earlier(next, jobs_->next_deadline());
  return next;
}

std::optional<Seat> JobTable::seat(ConnectionId connection) const {
  const Job* job = jobs_->at(connection);
  return job == nullptr ? std::nullopt : job->seat(connection);
}

bool JobTable::has_job(std::uint64_t number) const { return jobs_->find(number) != nullptr; }
std::size_t JobTable::num_jobs() const { return jobs_->size(); }
const JobNumbers& JobTable::numbers() const { return jobs_->numbers(); }

// Returns the last job of that name: the earlier ones have ended.
Job* JobTable::job_named(const std::string& run_id) const {
  const auto jobs = jobs_->named(run_id);
  return jobs.empty() ? nullptr : jobs.back();
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

std::optional<JobStatus> JobTable::next_status(std::uint64_t after) const {
  const Job* job = jobs_->after(after);
  return job == nullptr ? std::nullopt : std::optional(job->status());
}

std::vector<NodeStatus> JobTable::nodes_of(std::uint64_t number) const {
  const Job* job = jobs_->find(number);
  return job == nullptr ? std::vector<NodeStatus>() : job->node_statuses();
}

std::vector<JobStatus> JobTable::status() const {
  std::vector<JobStatus> all;
  while (auto job = next_status(all.empty() ? 0 : all.back().number)) {
    job->nodes = nodes_of(job->number);
    all.push_back(*std::move(job));
  }
  return all;
}

PhaseSeconds JobTable::seconds(Clock::time_point now) const {
  PhaseSeconds all = seconds_of_dropped_;
  for (const Job* job = jobs_->after(0); job != nullptr; job = jobs_->after(job->number())) {
    all += job->seconds(now);
  }
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
  for (const std::uint64_t number : std::exchange(changed_, {})) {
    jobs_->find(number)->collect_changes(batch);
  }
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
      auto job = std::make_unique<Job>(options_, number, read_job(of_job, clock_shift), now, out);
      const std::string client = client_of(job->state());
      settle(jobs_->add(std::move(job), client), now);
    } catch (const std::exception& error) {  // JSON errors, too
      const std::string what =
          concat("job number ", number, " of the journal is lost: ", error.what(),
                 "; its agents are refused and end with 75");
      out.emplace_back(action::Log{LogLevel::kError, what});
      for (const auto& [key, content] : of_job) {
        erased_.push_back({job_row_prefix(number) + key, std::nullopt});
      }
    }
  }
  finished_.drop_old(now);
  return out;
}

}  // namespace ddprun::membership
