// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/membership/job_index.h"

#include "rendezvous/membership/verdicts.h"

namespace ddprun::membership {

Job& JobIndex::add(std::unique_ptr<Job> job, const std::string& client) {
  const std::uint64_t number = job->number();
  Entry& entry = jobs_[number];
  entry.job = std::move(job);
  entry.client = client;
  if (!client.empty()) ++num_by_client_[client];
  by_name_.emplace(entry.job->state().run_id, number);
  count(entry, true);
  update(*entry.job);
  return *entry.job;
}

void JobIndex::count(const Entry& entry, bool is_there) {
  const std::size_t by = is_there ? 1 : static_cast<std::size_t>(-1);
  numbers_.in_phase[static_cast<std::size_t>(entry.phase)] += by;
  numbers_.waiting_nodes += by * entry.num_waiting;
}

void JobIndex::update(const Job& job) {
  const std::uint64_t number = job.number();
  const JobState& state = job.state();
  Entry& entry = jobs_.at(number);
  count(entry, false);
  entry.phase = state.phase;
  entry.num_waiting = state.phase == JobPhase::kForming ? job.num_connected() : 0;
  count(entry, true);
  if (const auto due = job.next_deadline(); due != entry.due) {
    if (entry.due) by_deadline_.erase({*entry.due, number});
    if (due) by_deadline_.emplace(*due, number);
    entry.due = due;
  }
  const std::string_view made_for = user_of_made_id(state.run_id);
  if (!made_for.empty()) {
    place(job.awaits_first_round(), entry.is_sibling, siblings_, {std::string(made_for), number});
  }
  const bool holds_port = is_static(state.settings) && !job.ended() && !job.empty();
  place(holds_port, entry.holds_port, holders_of_port_, number);
}

JobIndex::Removed JobIndex::remove(const Job& job) {
  const auto found = jobs_.find(job.number());
  Entry& entry = found->second;
  const std::uint64_t number = found->first;
  const std::string& run_id = job.state().run_id;
  count(entry, false);
  if (entry.due) by_deadline_.erase({*entry.due, number});
  place(false, entry.is_sibling, siblings_, {std::string(user_of_made_id(run_id)), number});
  place(false, entry.holds_port, holders_of_port_, number);
  by_name_.erase({run_id, number});
  const auto num = num_by_client_.find(entry.client);
  if (num != num_by_client_.end() && --num->second == 0) num_by_client_.erase(num);
  for (const ConnectionId connection : entry.connections) by_connection_.erase(connection);
  Removed removed{std::move(entry.job), {entry.connections.begin(), entry.connections.end()}};
  jobs_.erase(found);
  return removed;
}

std::size_t JobIndex::num_of(const std::string& client) const {
  const auto found = num_by_client_.find(client);
  return found == num_by_client_.end() ? 0 : found->second;
}

Job* JobIndex::find(std::uint64_t number) const {
  const auto found = jobs_.find(number);
  return found == jobs_.end() ? nullptr : found->second.job.get();
}

Job* JobIndex::after(std::uint64_t number) const {
  const auto found = jobs_.upper_bound(number);
  return found == jobs_.end() ? nullptr : found->second.job.get();
}

std::vector<Job*> JobIndex::named(const std::string& run_id) const {
  std::vector<Job*> jobs;
  for (auto each = by_name_.lower_bound({run_id, 0});
       each != by_name_.end() && each->first == run_id; ++each) {
    jobs.push_back(find(each->second));
  }
  return jobs;
}

Job* JobIndex::sibling_of(const Job& job) const {
  const std::string& run_id = job.state().run_id;
  const std::string made_for(user_of_made_id(run_id));
  if (made_for.empty()) return nullptr;
  for (auto each = siblings_.lower_bound({made_for, 0});
       each != siblings_.end() && each->first == made_for; ++each) {
    Job* other = find(each->second);
    if (other->state().run_id != run_id) return other;
  }
  return nullptr;
}

Job* JobIndex::holder_of_port(std::string_view but_for) const {
  for (auto each = holders_of_port_.rbegin(); each != holders_of_port_.rend(); ++each) {
    Job* job = find(*each);
    if (job->state().run_id != but_for) return job;
  }
  return nullptr;
}

Job* JobIndex::at(ConnectionId connection) const {
  const auto found = by_connection_.find(connection);
  return found == by_connection_.end() ? nullptr : find(found->second);
}

void JobIndex::connect(ConnectionId connection, const Job& job) {
  disconnect(connection);
  by_connection_[connection] = job.number();
  jobs_.at(job.number()).connections.insert(connection);
}

void JobIndex::disconnect(ConnectionId connection) {
  const auto found = by_connection_.find(connection);
  if (found == by_connection_.end()) return;
  jobs_.at(found->second).connections.erase(connection);
  by_connection_.erase(found);
}

std::optional<Clock::time_point> JobIndex::next_deadline() const {
  return by_deadline_.empty() ? std::nullopt : std::optional(by_deadline_.begin()->first);
}

std::vector<Job*> JobIndex::due(Clock::time_point now, std::size_t most) const {
  std::vector<Job*> jobs;
  for (const auto& [at, number] : by_deadline_) {
    if (at > now || jobs.size() == most) break;
    jobs.push_back(find(number));
  }
  return jobs;
}

}  // namespace ddprun::membership
