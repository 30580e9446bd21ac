// SPDX-License-Identifier: Apache-2.0
// A rendezvous and its agents in one process, without sockets or clock. The machine's tests are
// written in it.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>

#include "common/variant.h"
#include "rendezvous/journal/row.h"
#include "rendezvous/membership/machine.h"
#include "rendezvous/messages/messages.h"
#include "tests/support/catch.h"

namespace ddprun::membership::testing {

using namespace std::chrono_literals;

inline MachineOptions journalled() {
  MachineOptions options;
  options.journalled = true;
  return options;
}

// A small language: j.join("a"), j.says("a", message), j.wait(1s); then j.last<JobEnd>("a").
class Script {
 public:
  explicit Script(int num_nodes = 2, int max_restarts = 0, const MachineOptions& options = {})
      : table(options, [n = 0]() mutable { return "s" + std::to_string(++n); }) {
    settings.min_nodes = settings.max_nodes = num_nodes;
    settings.max_restarts = max_restarts;
  }

  Join make_join(const std::string& name) const {
    Join join;
    join.run_id = "job";
    join.instance = name;
    join.host = name;
    join.settings = settings;
    join.timeouts = timeouts;
    join.store_port = 1000;
    join.program = "train";
    return join;
  }

  void join(const std::string& name) { join(name, make_join(name)); }
  // The node is on the machine `host`.
  void join_from(const std::string& host, const std::string& name) {
    Join message = make_join(name);
    message.host = host;
    message.advertised_addr = "10.0.1." + host;
    join(name, std::move(message));
  }
  void join(const std::string& name, Join join) {
    Agent& agent = agents[name];
    agent.connection = ++last_connection;
    join.session = agent.session;
    event::Message message;
    message.connection = agent.connection;
    message.envelope = agent.channel.plain(std::move(join));
    message.facts.peer_addr = "10.0.0." + name;
    message.facts.local_addr = "10.0.0.200";
    message.facts.peer_is_loopback = name.starts_with("local");
    if (name.starts_with("local")) message.facts.peer_addr = "127.0.0.1";
    message.facts.user = user;
    step(message);
  }
  void says(const std::string& name, AgentMessage message) {
    Agent& agent = agents[name];
    step(event::Message{agent.connection, agent.channel.number(std::move(message)), {}});
  }
  // Sends a message without a number.
  void mentions(const std::string& name, AgentMessage message) {
    Agent& agent = agents[name];
    step(event::Message{agent.connection, agent.channel.plain(std::move(message)), {}});
  }
  void acks(const std::string& name) {
    Agent& agent = agents[name];
    step(event::Message{agent.connection, agent.channel.plain(Ack{}), {}});
  }
  void fails(const std::string& name, std::uint64_t round, int exit_code, int signal = 0) {
    WorkerFailed failed{round, {}};
    failed.failure.exit_code = exit_code;
    failed.failure.signal_number = signal;
    says(name, failed);
  }
  void closes(const std::string& name) { step(event::Closed{agents[name].connection}); }
  void loses_store(const std::string& name, const std::string& why) {
    step(event::StoreLost{agents[name].connection, why});
  }
  void hears(const std::string& name) { step(event::Heard{agents[name].connection}); }
  void wait(std::chrono::milliseconds time) {
    const auto until = now + time;
    while (table.next_deadline() && *table.next_deadline() <= until) {
      now = std::max(now, *table.next_deadline());
      step(event::Tick{});
    }
    now = until;
  }
  // This rendezvous stands still. Then its timer comes before the messages of that time.
  void stand_still(std::chrono::milliseconds time) {
    now += time;
    step(event::Tick{});
  }
  // Writes all decisions until now to the journal.
  void keep() { journal::apply_batch(table.take_changes(), rows); }
  // Another process that goes on with the kept rows. Its clock is ahead by `clock_shift`. The
  // agents' connections end; their next moves are the test's.
  std::unique_ptr<Script> restarted(const MachineOptions& options = journalled(),
                                    Clock::duration clock_shift = {}) const {
    auto after = std::make_unique<Script>(0, 0, options);
    after->settings = settings;
    after->timeouts = timeouts;
    after->rows = rows;
    after->agents = agents;
    after->now = now + clock_shift;
    after->last_connection = last_connection;
    for (const Action& action : after->table.restore(rows, clock_shift, after->now)) {
      if (const auto* log = variants::get_if<action::Log>(&action))
        after->logs.push_back(log->text);
    }
    return after;
  }

  std::vector<TailRoute> asks_for_tails(const TailQuestion& question) {
    Actions actions;
    std::vector<TailRoute> routes = table.ask_for_tails("job", question, actions);
    perform(actions);
    return routes;
  }
  TailRoute asks_for_tail(int global_rank, std::uint64_t request) {
    return asks_for_tails({{global_rank}, request}).front();
  }
  void close_to_new_jobs() { perform(table.close_to_new_jobs(now)); }
  // All agents stay alive meanwhile.
  void wait_alive(std::chrono::milliseconds time) {
    for (auto passed = 0ms; passed < time; passed += 1000ms) {
      wait(std::min(1000ms, time - passed));
      for (auto& [name, agent] : agents) step(event::Heard{agent.connection});
    }
  }

  template <typename Message>
  const Message* last(const std::string& name) {
    const Message* found = nullptr;
    for (const auto& message : agents[name].received) {
      if (const auto* match = variants::get_if<Message>(&message)) found = match;
    }
    return found;
  }
  // The same, of a kind that it must have got.
  template <typename Message>
  const Message& got(const std::string& name) {
    const Message* found = last<Message>(name);
    if (found == nullptr) throw std::logic_error("node " + name + " got no such message");
    return *found;
  }
  std::uint64_t round(const std::string& name) {
    const auto* start = last<StartRound>(name);
    return start == nullptr ? 0 : start->round;
  }

  struct Agent {
    ConnectionId connection = 0;
    std::string session;
    Channel<AgentMessage> channel;
    std::deque<RendezvousMessage> received;
    bool closed = false;
  };

  JobSettings settings;
  JobTimeouts timeouts;
  std::optional<std::uint32_t> user;  // ConnectionFacts::user of the joining agent
  JobTable table;
  journal::Rows rows;  // the rows after keep()
  std::map<std::string, Agent> agents;
  std::deque<std::string> logs;
  std::deque<action::RoundStarted> starts;
  std::deque<RoundEnd> round_ends;
  std::deque<action::TailSaid> tails;
  Clock::time_point now{1h};
  ConnectionId last_connection = 0;

 private:
  void step(const Event& event) { perform(table.step(event, now)); }
  void perform(const Actions& actions) {
    for (const Action& action : actions) {
      if (const auto* log = variants::get_if<action::Log>(&action)) logs.push_back(log->text);
      if (const auto* start = variants::get_if<action::RoundStarted>(&action))
        starts.push_back(*start);
      if (const auto* said = variants::get_if<action::TailSaid>(&action)) tails.push_back(*said);
      if (const auto* over = variants::get_if<action::RoundOver>(&action))
        round_ends.push_back(over->end);
      for (auto& [name, agent] : agents) {
        const auto* send = variants::get_if<action::Send>(&action);
        if (send != nullptr && send->connection == agent.connection) {
          REQUIRE(agent.channel.receive(send->envelope.seq, send->envelope.ack) != Arrival::kGap);
          agent.received.push_back(send->envelope.message);
          if (const auto* welcome = variants::get_if<Welcome>(&send->envelope.message)) {
            agent.session = welcome->session;
          }
        }
        const auto* close = variants::get_if<action::Close>(&action);
        if (close != nullptr && close->connection == agent.connection) agent.closed = true;
      }
    }
  }
};

}  // namespace ddprun::membership::testing
