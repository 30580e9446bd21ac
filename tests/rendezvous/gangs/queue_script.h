// SPDX-License-Identifier: Apache-2.0
// A queue and its messages, for tests: each step is one line.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "common/variant.h"
#include "rendezvous/gangs/gang_queue.h"

namespace ddprun::gangs::testing {

using namespace std::chrono_literals;

inline std::string said(const QueueMessage& message) {
  if (const auto* start = variants::get_if<StartPart>(&message)) {
    return "start " + start->gang + " " + start->nodes + "x" + start->workers;
  }
  if (const auto* stop = variants::get_if<StopPart>(&message)) return "stop " + stop->gang;
  if (const auto* forget = variants::get_if<ForgetPart>(&message)) return "forget " + forget->gang;
  if (variants::holds_alternative<NodeRefused>(message)) return "refused";
  return variants::holds_alternative<Welcome>(message) ? "welcome" : "output";
}

class QueueScript {
 public:
  explicit QueueScript(GangQueueOptions given = {}) : options(given), queue(given) {}

  static GangSpec spec(const std::string& id, int min_nodes, const std::string& workers,
                       int max_nodes = 0) {
    GangSpec spec;
    spec.id = id;
    spec.user = "alice";
    spec.uid = 1000;
    spec.min_nodes = min_nodes;
    spec.max_nodes = max_nodes == 0 ? min_nodes : max_nodes;
    spec.workers = workers;
    spec.arguments = {"--", "train"};
    spec.directory = "/home/alice";
    return spec;
  }

  GangQueue::Verdict submit(const std::string& id, int min_nodes, const std::string& workers,
                            int max_nodes = 0, const std::string& owner = "alice") {
    GangActions out;
    const auto verdict = queue.submit(spec(id, min_nodes, workers, max_nodes), owner, time(), out);
    take(out);
    return verdict;
  }
  // An agent connects. The connection is named like the node, with "bob@" before it if the agent is
  // bob's.
  void came(const std::string& node, int slots, std::vector<HeldPart> held = {},
            const std::string& owner = "alice", const std::string& instance = "1") {
    NodeHello hello;
    hello.node = node;
    hello.user = owner;
    hello.slots = slots;
    hello.instance = instance;
    hello.gangs = std::move(held);
    const ConnectionId connection = ++last_connection;
    const std::string name = owner == "alice" ? node : owner + "@" + node;
    names[connection] = name;
    connections[name] = connection;
    GangActions out;
    queue.node_came(connection, hello, owner, "10.0.0.1", time(), out);
    take(out);
  }
  void gone(const std::string& node) {
    GangActions out;
    queue.node_gone(connections.at(node), time(), out);
    take(out);
  }
  void started(const std::string& node, const std::string& gang) {
    GangActions out;
    queue.part_started(connections.at(node), gang, time(), out);
    take(out);
  }
  void ended(const std::string& node, const std::string& gang, int code,
             const std::string& reason = "") {
    GangActions out;
    queue.part_ended(connections.at(node), {gang, code, reason}, time(), out);
    take(out);
  }
  bool cancel(const std::string& gang) {
    GangActions out;
    const bool found = queue.cancel(gang, "alice", time(), out);
    take(out);
    return found;
  }
  void pass(std::chrono::milliseconds span) {
    now += span;
    GangActions out;
    queue.tick(time(), out);
    take(out);
  }
  void restart() {
    keep();
    queue = GangQueue(options);
    connections.clear();
    GangActions out;
    queue.restore(rows, time(), out);
    take(out);
  }
  void keep() { journal::apply_batch(queue.take_changes(), rows); }

  // "queued", "running on n1 n2", "ended 0", …
  std::string state(const std::string& id) const {
    const GangQueue::Gang* gang = queue.find(id);
    if (gang == nullptr) return "forgotten";
    std::string text = to_string(gang->state.phase);
    if (gang->state.phase == GangPhase::kEnded) {
      return text + " " + std::to_string(gang->state.exit_code);
    }
    for (std::size_t i = 0; i < gang->state.parts.size(); ++i) {
      text += (i == 0 ? " on " : " ") + gang->state.parts[i].node;
    }
    return text;
  }
  // The messages since the last call: "n1: start a 2x4".
  std::vector<std::string> told() { return std::exchange(told_, {}); }

  GangTime time() const { return {now, 1'700'000'000'000}; }

  const GangQueueOptions options;
  GangQueue queue;
  Clock::time_point now{1000s};
  journal::Rows rows;
  std::map<std::string, ConnectionId> connections;
  std::map<ConnectionId, std::string> names;
  ConnectionId last_connection = 0;

 private:
  void take(const GangActions& actions) {
    for (const auto& action : actions) {
      if (const auto* tell = variants::get_if<gang_action::Tell>(&action)) {
        const std::string text = said(tell->message);
        if (text != "welcome") told_.push_back(names[tell->connection] + ": " + text);
      }
      if (const auto* close = variants::get_if<gang_action::Close>(&action)) {
        told_.push_back(names[close->connection] + ": closed");
      }
    }
  }

  std::vector<std::string> told_;
};

}  // namespace ddprun::gangs::testing
