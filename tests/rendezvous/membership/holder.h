// SPDX-License-Identifier: Apache-2.0
// HeldJobs as a test drives it: agents have names, time passes when it is told to.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "rendezvous/membership/held_jobs.h"
#include "tests/rendezvous/membership/job_rows_of.h"
#include "tests/rendezvous/membership/script.h"

namespace ddprun::membership::testing {

// h.joins("a"); h.grants("a"); then what came of the last event.
struct Holder {
  explicit Holder(const journal::Rows& kept, bool is_incumbent = false,
                  std::optional<journal::Rows> rows_before = std::nullopt,
                  std::vector<std::string> bases = {"t1"}, const std::string& own = "t2")
      : Holder(kept, Terms{.own = own,
                           .bases = std::move(bases),
                           .is_incumbent = is_incumbent,
                           .rows_before = std::move(rows_before)}) {}
  Holder(const journal::Rows& kept, const Terms& terms, const RowsClock& clock = {})
      : term(terms.own), journal(kept), rows(kept), jobs(terms, rows, clock, now) {
    take(jobs.begin());
  }

  Join join_of(const std::string& name) const {
    Join join;
    join.run_id = "job";
    join.instance = "instance of " + name;
    join.session = name;
    return join;
  }
  void joins(const std::string& name) { joins(name, join_of(name)); }
  void joins(const std::string& name, const Join& join) {
    event::Message message;
    message.connection = connections[name] = ++last_connection;
    message.envelope.message = join;
    step(message);
  }
  void joins_anew(const std::string& name, const std::string& run_id = "job") {
    Join join = join_of(name);
    join.session.clear();
    join.run_id = run_id;
    joins(name, join);
  }
  void says(const std::string& name, AgentMessage said) {
    event::Message message;
    message.connection = connections[name];
    message.envelope.message = std::move(said);
    step(message);
  }
  void grants(const std::string& name) { says(name, Vote{term, true, term}); }
  void denies(const std::string& name, const std::string& follows = "t3") {
    says(name, Vote{term, false, follows});
  }
  void closes(const std::string& name) { step(event::Closed{connections[name]}); }
  void wait(std::chrono::milliseconds time) {
    const auto until = now + time;
    while (jobs.next_deadline() && *jobs.next_deadline() <= until) {
      now = std::max(now, *jobs.next_deadline());
      step(event::Tick{});
    }
    now = until;
  }
  void step(const Event& event) { take(jobs.step(event, now)); }
  void take(HeldJobs::Outcome outcome) {
    last = std::move(outcome);
    for (const Action& action : last.actions) {
      if (const auto* log = std::get_if<action::Log>(&action)) logs.push_back(log->text);
      if (const auto* close = std::get_if<action::Close>(&action)) {
        closed.push_back(close->connection);
      }
    }
    for (const auto& join : last.joins) through.push_back(name_at(join.connection));
    restored.clear();
    for (const auto& job : last.restored) {
      restored.insert(job.rows.begin(), job.rows.end());
      clock_shift = job.clock_shift;
    }
    num_restored += rows_by_job(restored).size();
    journal::apply_batch(last.changes, journal);
  }
  std::string name_at(ConnectionId connection) const {
    for (const auto& [name, at] : connections) {
      if (at == connection) return name;
    }
    return "?";
  }
  // The claim that the last event brought to this agent.
  std::optional<Claim> asked(const std::string& name) const {
    for (const Action& action : last.actions) {
      const auto* send = std::get_if<action::Send>(&action);
      if (send == nullptr || send->connection != connections.at(name)) continue;
      if (const auto* claim = std::get_if<Claim>(&send->envelope.message)) return *claim;
    }
    return std::nullopt;
  }
  bool is_closed(const std::string& name) const {
    return std::ranges::count(closed, connections.at(name)) > 0;
  }

  const std::string term;
  Clock::time_point now{1h};
  journal::Rows journal;
  journal::Rows rows;  // what is nobody's
  HeldJobs jobs;
  HeldJobs::Outcome last;
  journal::Rows restored;         // by it
  Clock::duration clock_shift{};  // of the last one of these
  std::map<std::string, ConnectionId> connections;
  ConnectionId last_connection = 0;
  std::vector<ConnectionId> closed;
  std::vector<std::string> logs, through;
  std::size_t num_restored = 0;
};

using Names = std::vector<std::string>;

}  // namespace ddprun::membership::testing
