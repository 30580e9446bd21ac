// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/membership/finished_jobs.h"

#include <algorithm>
#include <exception>
#include <iterator>
#include <string_view>

#include "common/error.h"
#include "common/parsed_number.h"
#include "common/text.h"
#include "rendezvous/membership/row_fields.h"
#include "rendezvous/membership/state.h"
#include "rendezvous/membership/verdicts.h"
#include "rendezvous/messages/messages.h"

namespace ddprun::membership {
namespace {

constexpr std::string_view kFinished = "finished/";

std::string row_key(std::uint64_t number) { return concat(kFinished, number); }

std::uint64_t number_in(const std::string& key) {
  const auto number = parsed_number<std::uint64_t>(std::string_view(key).substr(kFinished.size()));
  if (!number) throw Error(ErrorCode::kProtocol, "it has no number");
  return *number;
}

}  // namespace

FinishedJob finished_job(const JobState& state, const JobEnd& verdict, Clock::time_point now) {
  FinishedJob job;
  job.run_id = state.run_id;
  job.exit_code = verdict.exit_code;
  job.reason = verdict.reason;
  if (verdict.first_failure) job.first_failure = describe(*verdict.first_failure);
  job.summary = verdict.summary;
  job.rounds = state.round;
  job.failures = state.failures;
  job.node_losses = state.node_losses;
  job.preemptions = state.preemptions;
  job.nodes = state.ledger.last_members();
  if (state.round == 0) {
    for (const auto& [id, node] : state.nodes) job.nodes.push_back(node.key);
  }
  job.num_nodes = job.nodes.size();
  job.nodes.resize(std::min(job.nodes.size(), FinishedJob::kMaxNames));
  job.began = state.began;
  job.ended = now;
  return job;
}

void FinishedJobs::add(std::uint64_t number, FinishedJob job) {
  if (keep_for_.count() == 0) return;
  if (journalled_) changes_.push_back({row_key(number), row_of(job)});
  insert(number, std::move(job));
}

void FinishedJobs::insert(std::uint64_t number, FinishedJob job) {
  const auto order = [](const Entry& other) { return place_of(other); };
  Entry entry(number, std::move(job));
  const auto place = std::ranges::upper_bound(jobs_, order(entry), {}, order);
  jobs_.insert(place, std::move(entry));
  if (jobs_.size() > kMost) drop_first();
}

void FinishedJobs::drop_first() {
  if (journalled_) changes_.push_back({row_key(jobs_.front().first), std::nullopt});
  jobs_.pop_front();
}

void FinishedJobs::drop_old(Clock::time_point now) {
  while (!jobs_.empty() && *next_deadline() <= now) drop_first();
}

std::optional<Clock::time_point> FinishedJobs::next_deadline() const {
  if (jobs_.empty()) return std::nullopt;
  return jobs_.front().second.ended + keep_for_;
}

std::vector<FinishedJob> FinishedJobs::all() const {
  std::vector<FinishedJob> all;
  for (const auto& [number, job] : jobs_) all.push_back(job);
  return all;
}

FinishedJobs::Place FinishedJobs::place_of(std::size_t index) const {
  return index == 0 ? Place(Clock::time_point::min(), 0) : place_of(jobs_[index - 1]);
}

const FinishedJob* FinishedJobs::after(Place& place) const {
  const auto order = [](const Entry& entry) { return place_of(entry); };
  const auto next = std::ranges::upper_bound(jobs_, place, {}, order);
  if (next == jobs_.end()) return nullptr;
  place = order(*next);
  return &next->second;
}

void FinishedJobs::take_changes(journal::Batch& batch) {
  std::ranges::move(changes_, std::back_inserter(batch));
  changes_.clear();
}

std::vector<std::string> FinishedJobs::restore(const journal::Rows& rows,
                                               Clock::duration clock_shift, Clock::time_point now,
                                               std::uint64_t& last_number) {
  std::vector<std::string> losses;
  for (auto row = rows.lower_bound(std::string(kFinished)); row != rows.end(); ++row) {
    const auto& [key, content] = *row;
    if (!key.starts_with(kFinished)) break;
    try {
      const std::uint64_t number = number_in(key);
      last_number = std::max(last_number, number);
      auto job = read_row<FinishedJob>(content, clock_shift);
      job.ended = std::min(job.ended, now);
      insert(number, std::move(job));
    } catch (const std::exception& error) {  // JSON errors, too
      losses.push_back(concat("what the journal keeps of a job that is over (", key,
                              ") is lost: ", error.what()));
      changes_.push_back({key, std::nullopt});
    }
  }
  drop_old(now);
  return losses;
}

}  // namespace ddprun::membership
