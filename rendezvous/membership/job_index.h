// SPDX-License-Identifier: Apache-2.0
// The jobs of a JobTable, and what finds one without a walk over all: its number, name, connections
// and deadline. An event of one job costs O(log n) of n jobs, however many there are. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "rendezvous/membership/job.h"
#include "rendezvous/membership/machine.h"

namespace ddprun::membership {

class JobIndex {
 public:
  // `client` began it; empty: not known, and counted for nobody. Its number is above all others'.
  Job& add(std::unique_ptr<Job> job, const std::string& client);
  // To be called after each change of a job: it is found by what it is now.
  void update(const Job& job);
  struct Removed {
    std::unique_ptr<Job> job;
    std::vector<ConnectionId> connections;  // that are still its own
  };
  Removed remove(const Job& job);

  std::size_t size() const { return jobs_.size(); }
  const JobNumbers& numbers() const { return numbers_; }
  std::size_t num_of(const std::string& client) const;

  // Null: there is none. The first job in order of creation has the smallest number.
  Job* find(std::uint64_t number) const;
  Job* after(std::uint64_t number) const;
  // In order of creation. All but the last have ended.
  std::vector<Job*> named(const std::string& run_id) const;
  // One that waits for its first round, and whose name differs in its hash only. Null: none does.
  Job* sibling_of(const Job& job) const;
  // One of fixed ranks, of another name, that holds the port: it has nodes and hasn't ended.
  Job* holder_of_port(std::string_view but_for) const;

  Job* at(ConnectionId connection) const;
  bool knows(ConnectionId connection) const { return by_connection_.contains(connection); }
  void connect(ConnectionId connection, const Job& job);
  void disconnect(ConnectionId connection);

  std::optional<Clock::time_point> next_deadline() const;
  // At most `most` of those whose deadline has come; who waits longest is first.
  std::vector<Job*> due(Clock::time_point now, std::size_t most) const;

 private:
  struct Entry {
    std::unique_ptr<Job> job;
    std::string client;
    std::set<ConnectionId> connections;
    // Its places in what is below.
    std::optional<Clock::time_point> due;
    JobPhase phase = JobPhase::kForming;
    std::size_t num_waiting = 0;
    bool is_sibling = false, holds_port = false;
  };
  template <typename Set>
  static void place(bool is_in, bool& was_in, Set& set, typename Set::value_type key) {
    if (is_in == was_in) return;
    was_in = is_in;
    is_in ? static_cast<void>(set.insert(std::move(key))) : static_cast<void>(set.erase(key));
  }
  void count(const Entry& entry, bool is_there);

  std::map<std::uint64_t, Entry> jobs_;
  std::unordered_map<ConnectionId, std::uint64_t> by_connection_;
  std::set<std::pair<std::string, std::uint64_t>> by_name_;
  std::set<std::pair<Clock::time_point, std::uint64_t>> by_deadline_;
  // The jobs that wait for their first round under a made name, by the one that it is made for.
  std::set<std::pair<std::string, std::uint64_t>> siblings_;
  std::set<std::uint64_t> holders_of_port_;
  std::unordered_map<std::string, std::size_t> num_by_client_;
  JobNumbers numbers_;
};

}  // namespace ddprun::membership
