// SPDX-License-Identifier: Apache-2.0
// One node's AgentMachine with what it did last, for its tests.
#pragma once

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "agent/link/agent_machine.h"
#include "common/error.h"
#include "common/variant.h"
#include "tests/support/catch.h"

namespace ddprun::membership {

using namespace std::chrono_literals;

// The machine with its last actions. The rendezvous' messages are numbered here.
struct AgentNode {
  explicit AgentNode(const std::string& backend = "c10d") {
    options.join.run_id = "job";
    options.join.instance = "i";
    options.join.settings.min_nodes = options.join.settings.max_nodes = 2;
    options.join.settings.rdzv_backend = backend;
    options.endpoints = {Endpoint{.host = "head", .port = 29500}};
    begin();
  }
  // Anew, with `options`.
  void begin() {
    machine = std::make_unique<AgentMachine>(options, [this](const std::string& address, auto) {
      bound.push_back(address);
      if (!no_port.empty()) throw Error(ErrorCode::kUnavailable, no_port);
      return next_port++;
    });
  }
  void operator()(const AgentEvent& event) {
    for (auto& action : machine->step(event, now)) actions.push_back(std::move(action));
  }
  void hear(RendezvousMessage message, bool numbered = true) {
    const std::uint64_t seq = numbered ? ++pushed : 0;
    (*this)(agent_event::LinkMessage{{seq, 0, std::move(message)}});
  }
  void welcome(bool embedded = false) {
    Welcome message;
    message.session = "s";
    message.embedded = embedded;
    hear(message, false);
  }
  void say_join() {
    (*this)(agent_event::Start{});
    (*this)(agent_event::LinkUp{"10.0.0.2", "10.0.0.1"});
  }
  void join() {  // goes up to the rendezvous' welcome
    say_join();
    welcome();
  }
  void run() {  // goes up to live workers of round 1
    join();
    start(1);
  }
  void start(std::uint64_t round) {
    StartRound message;
    message.round = round;
    message.serve_store = true;
    hear(message);
  }
  void pass(std::chrono::milliseconds time) {
    now += time;
    if (machine->next_deadline() && *machine->next_deadline() <= now) (*this)(agent_event::Timer{});
  }

  // The last action of this kind since clear(), or null.
  template <typename Action>
  const Action* last() const {
    const Action* found = nullptr;
    for (const auto& action : actions) {
      if (const auto* match = variants::get_if<Action>(&action)) found = match;
    }
    return found;
  }
  template <typename Message>
  const Message* said() const {
    const Message* found = nullptr;
    for (const auto& action : actions) {
      const auto* send = variants::get_if<agent_action::Send>(&action);
      if (send == nullptr) continue;
      if (const auto* match = variants::get_if<Message>(&send->envelope.message)) found = match;
    }
    return found;
  }

  AgentOptions options;
  std::unique_ptr<AgentMachine> machine;
  std::vector<AgentAction> actions;
  std::vector<std::string> bound;  // addresses where a store was to be bound
  std::uint16_t next_port = 4000;
  std::string no_port;  // the reason that none can be bound; empty: one can
  Clock::time_point now{1h};
  std::uint64_t pushed = 0;
};

}  // namespace ddprun::membership
