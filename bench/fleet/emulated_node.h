// SPDX-License-Identifier: Apache-2.0
// One node without workers: the shipped agent machine, with workers that exist on paper. Knows the
// truth about them. Pure: connection, timers and clock are its host's.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "agent/link/agent_runner.h"

namespace ddprun::bench {

enum class Alarm {
  kMachine,  // the agent's
  kWorkers,  // something happens to the workers
  kWarden,   // the workers' lease is over: rings also where the agent stands still
};
inline constexpr std::size_t kNumAlarms = 3;

// A node's surroundings: time and its link to the rendezvous.
class NodeHost {
 public:
  virtual ~NodeHost() = default;
  virtual Clock::time_point now() const = 0;
  // As AgentLink's; events come by EmulatedNode::hear(), never from inside a call.
  virtual void connect(std::chrono::milliseconds timeout) = 0;
  virtual void close_link() = 0;
  virtual void send(const membership::AgentEnvelope& envelope) = 0;
  virtual void set_keep_alive(std::chrono::milliseconds timeout,
                              std::chrono::milliseconds interval) = 0;
  // Calls EmulatedNode::ring(alarm) then, instead of at the time that was named last.
  virtual void wake_at(Alarm alarm, std::optional<Clock::time_point> at) = 0;
};

// Hears what a node was told or did, as it happens.
class NodeObserver {
 public:
  virtual ~NodeObserver() = default;
  virtual void welcomed(int node) = 0;
  virtual void started(int node, const membership::StartRound& start) = 0;
  virtual void running(int node, std::uint64_t round) = 0;
  virtual void told_to_stop(int node, std::uint64_t round) = 0;
  virtual void emptied(int node, std::uint64_t round) = 0;  // no worker is left
  virtual void told_the_end(int node, int exit_code) = 0;   // of the job; it exits in a while
  virtual void exited(int node, const membership::agent_action::Exit& exit) = 0;
  // A late message of an old round had an effect.
  virtual void misled(int node, const char* effect) = 0;
};

struct EmulatedNodeOptions {
  int index = 0;
  membership::AgentOptions machine;
  std::chrono::milliseconds spawn_time{0};  // StartRound → all workers run
  std::chrono::milliseconds step_time{0};   // → their first step is done; 0: they don't say
  std::chrono::milliseconds stop_time{0};  // told to stop → no worker is left, if not killed before
};

class EmulatedNode {
 public:
  // `host` and `observer` outlive it.
  EmulatedNode(EmulatedNodeOptions options, NodeHost& host, NodeObserver& observer);
  EmulatedNode(const EmulatedNode&) = delete;
  EmulatedNode& operator=(const EmulatedNode&) = delete;

  void start() { runner_.handle(membership::agent_event::Start{}); }
  void hear(membership::AgentEvent link_event);
  // Hears a message of an old round, which must change nothing.
  void hear_late(membership::RendezvousEnvelope envelope);
  void ring(Alarm alarm);

  // All of its workers end well, or one fails. Only while they run.
  void succeed();
  void fail(int exit_code);
  // The agent, and by its warden the workers, are gone without a word. No call follows.
  void die();

  bool dead() const { return dead_; }
  bool exited() const { return runner_.machine().exited(); }
  // The round whose workers live here at this moment.
  std::optional<std::uint64_t> live_round() const {
    return work_ == Work::kNone ? std::nullopt : std::optional(round_);
  }
  bool runs() const { return work_ == Work::kRunning; }
  std::uint64_t round() const { return round_; }  // the last one; 0: none yet
  int node_rank() const { return node_rank_; }
  // Something will happen by itself, whatever the connection brings.
  bool has_deadline() const {
    return runner_.machine().next_deadline().has_value() || workers_due_.has_value();
  }

 private:
  enum class Work { kNone, kStarting, kRunning, kStopping };

  void perform(const membership::AgentAction& action);
  void spawn(const membership::StartRound& start);
  void stop(std::chrono::milliseconds grace);
  void lease(std::optional<Clock::time_point> until);
  void due_at(std::optional<Clock::time_point> at);
  void workers_due();
  void empty();

  const EmulatedNodeOptions options_;
  NodeHost& host_;
  NodeObserver& observer_;
  membership::AgentRunner runner_;
  Work work_ = Work::kNone;
  std::uint64_t round_ = 0;
  int node_rank_ = -1;
  int first_global_rank_ = 0;
  std::optional<Clock::time_point> workers_due_;
  std::optional<Clock::time_point> lease_, warden_rings_;
  bool stepped_ = false;
  bool fenced_unsaid_ = false;  // the warden has killed them, the agent doesn't know yet
  bool gone_unsaid_ = false;    // it was told to stop them and waits for their end
  bool dead_ = false;
  int num_effects_ = 0;  // actions so far
};

}  // namespace ddprun::bench
