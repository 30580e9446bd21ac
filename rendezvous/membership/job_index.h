// SPDX-License-Identifier: Apache-2.0
// The jobs of a JobTable, with indexes by number, name, connection and deadline. With n jobs an
// event of one costs O(log n). Pure.
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
  // Adds a job, whose number must be the largest. `client` began it; empty: not known, so no
  // client's count grows.
  Job& add(std::unique_ptr<Job> job, const std::string& client);
  // Updates the indexes; called after each change of a job.
  void update(const Job& job);
  struct Removed {
    std::unique_ptr<Job> job;
    std::vector<ConnectionId> connections;  // that are still open
  };
  Removed remove(const Job& job);

  std::size_t size() const { return jobs_.size(); }
  const JobNumbers& numbers() const { return numbers_; }
  std::size_t num_of(const std::string& client) const;

  // Return null if there is no such job. Numbers grow in order of creation.
  Job* find(std::uint64_t number) const;
  Job* after(std::uint64_t number) const;
  // Returns the jobs of that name in order of creation. All but the last have ended.
  std::vector<Job*> named(const std::string& run_id) const;
  // Returns a job that waits for its first round and whose name differs only in its hash; null:
  // none.
  Job* sibling_of(const Job& job) const;
  // Returns a job of fixed ranks that holds the port: it has nodes and hasn't ended. A job named
  // `but_for` doesn't count.
  Job* holder_of_port(std::string_view but_for) const;

  Job* at(ConnectionId connection) const;
  bool knows(ConnectionId connection) const { return by_connection_.contains(connection); }
  void connect(ConnectionId connection, const Job& job);
  void disconnect(ConnectionId connection);

  std::optional<Clock::time_point> next_deadline() const;
  // Returns at most `most` jobs whose deadline has come, the longest overdue first.
  std::vector<Job*> due(Clock::time_point now, std::size_t most) const;

 private:
  struct Entry {
    std::unique_ptr<Job> job;
    std::string client;
    std::set<ConnectionId> connections;
    // Its keys in the sets and counts below.
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
  // The jobs that wait for their first round under a made id, by that id's user.
  std::set<std::pair<std::string, std::uint64_t>> siblings_;
  std::set<std::uint64_t> holders_of_port_;
  std::unordered_map<std::string, std::size_t> num_by_client_;
  JobNumbers numbers_;
};

}  // namespace ddprun::membership
