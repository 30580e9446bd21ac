// SPDX-License-Identifier: Apache-2.0
// Jobs that outlive the rendezvous process: what the journal is given of them, and how they come
// back from it.
#include <algorithm>
#include <exception>
#include <iterator>
#include <map>
#include <memory>
#include <utility>

#include "common/error.h"
#include "rendezvous/membership/job.h"
#include "rendezvous/membership/job_rows.h"
#include "rendezvous/membership/job_settings.h"

namespace ddprun::membership {
Job::Job(const MachineOptions& options, std::uint64_t number, JobState state, TimePoint now,
         Actions& out)
    : options_(options), number_(number), state_(std::move(state)) {
  restored_at_ = now;
  seconds_before_ = state_.ledger.total_until(now);
  if (ended()) ended_at_ = now;
  hang_.count_on_from(state_.inquiries);
  last_waiting_ = now - kWaitingInterval;
  // A node is told apart from one that is lost by its silence, and silence takes that long.
  const TimePoint until = now + std::max(options_.restore_grace, state_.timeouts.keep_alive);
  state_.nodes.edit_each([&](Node& node) {
    index(node);
    node.last_heard = now;
    if (is_member(node)) ++members_in_phase_[static_cast<std::size_t>(node.phase)];
    if (node.gone) return;
    node.returning = true;
    ++num_returning_;
    returning_until_ = until;
    node.grace_until = until;
    keep_earlier(presence_check_, until);
  });
  // What they would have said in time, had anybody listened, they can say until then.
  JobDeadlines& deadlines = state_.deadlines;
  for (Optional* deadline : {&deadlines.join, &deadlines.start, &deadlines.barrier, &deadlines.stop,
                             &deadlines.linger}) {
    if (*deadline) *deadline = std::max(**deadline, until);
  }
  log(out, LogLevel::kInfo,
      concat("goes on after a restart of the rendezvous: ", to_string(state_.phase), ", round ",
             state_.round, "; its ", num_returning_, " nodes have ",
             std::chrono::ceil<std::chrono::milliseconds>(until - now).count(),
             " ms to come back"));
  const bool live = state_.phase == JobPhase::kRunning || state_.phase == JobPhase::kStopping;
  if (live) {
    out.push_back(
        action::RoundStarted{state_.run_id, state_.round, store_is_at_endpoint(state_.settings)});
  }
}

void Job::collect_changes(journal::Batch& batch) {
  if (std::exchange(changed_, false)) rows_.collect(state_, job_row_prefix(number_), batch);
}

void Job::erase_rows(journal::Batch& batch) {
  JobRows::erase(state_, job_row_prefix(number_), batch);
}

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
