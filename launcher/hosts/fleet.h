// SPDX-License-Identifier: Apache-2.0
// The agents of a job that one launcher starts. Decides when each starts, which node serves the
// rendezvous, when the rest is stopped, and the job's one result. Pure: takes events, calls
// actions. The rendezvous handles the job itself.
#pragma once

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "common/check.h"
#include "common/clock.h"
#include "common/log_level.h"
#include "common/signal_names.h"
#include "launcher/hosts/channel_codec.h"
#include "launcher/hosts/host_list.h"

namespace ddprun::launcher {

struct FleetOptions {
  std::vector<Host> nodes = {};  // by node rank
  int min_nodes = 1;             // the job ends with fewer
  // Signals that stop a node's ddprun in an orderly way. The fleet itself sends the first one. Not
  // empty.
  std::vector<int> stop_signals = {SIGTERM, SIGINT, SIGHUP, SIGQUIT};
  int fanout = 64;            // most hosts that are being reached at once
  std::string endpoint = {};  // the rendezvous'; empty: one of the nodes serves it
  std::chrono::milliseconds reach_timeout{60'000};     // from ssh's start to the agent's hello
  std::chrono::milliseconds stop_timeout{50'000};      // from the first signal to the end
  std::chrono::milliseconds verdict_patience{10'000};  // for the rendezvous to decide after a loss
};

// A Fleet's actions. None of these calls the fleet back at once.
class FleetActions {
 public:
  virtual ~FleetActions() = default;
  // Starts the process that leads to the node's agent.
  virtual void start(int node) = 0;
  // Sends the job. `serves`: the node serves the rendezvous, at the host `place`; else the
  // rendezvous is at `place`.
  virtual void run(int node, const std::string& place, bool serves) = 0;
  virtual void signal(int node, int number) = 0;
  // Ends the channel and its process. No event comes from this node any more.
  virtual void close(int node) = 0;
  virtual void say(LogLevel level, const std::string& text) = 0;
  // Called after each step: when tick() is to be called; nullopt: nothing waits for the clock.
  virtual void wake_at(std::optional<Clock::time_point> time) = 0;
  // Called last, once. `reason`: why this launcher ended the job, one line. If it is empty,
  // `last_words` has the nodes' report.
  virtual void finish(int exit_code, const std::string& reason, const std::string& last_words) = 0;
};

class Fleet {
 public:
  // `actions` outlives this.
  Fleet(FleetOptions options, FleetActions& actions);

  // The first call starts everything. Later calls are those that wake_at() asked for.
  void tick(Clock::time_point now);
  void hello(int node, const channel::Hello& hello, Clock::time_point now);
  void serving(int node, const std::string& endpoint, Clock::time_point now);
  void ended(int node, const channel::End& end, Clock::time_point now);
  // The channel's process has ended, or the channel is unusable. `code` is the exit code for this
  // reason; `text` is one line, without the host.
  void gone(int node, int code, const std::string& text, Clock::time_point now);
  // `is_warning`: the signal warns of preemption, and is only passed on.
  void signalled(int number, bool is_warning, Clock::time_point now);

 private:
  enum class State {
    kWaiting,     // for its turn to start
    kConnecting,  // no hello yet
    kReady,       // hello came, no job yet
    kRunning,     // has the job
    kEnded,       // told how its ddprun ended
    kLost,        // can't be heard any more
  };
  struct Missing {
    std::string name, loss;
  };
  struct Node {
    State state = State::kWaiting;
    Clock::time_point reach_by;  // in kConnecting
    channel::Hello hello;
    channel::End end;  // in kEnded
    int ended_as = 0;  // place in the order in which nodes ended
  };

  template <typename Event>
  void step(Clock::time_point now, Event event);
  std::optional<Clock::time_point> next_deadline() const;
  void start_more();
  void run_ready();
  int server() const;
  std::optional<std::string> serve_at(int server) const;
  int another_than(int signal_number) const;
  void signal_all(int number);
  void lose(int index, int code, const std::string& text);
  void give_up();
  void await_verdict(int code, const std::string& reason);
  void fail_alone(int index);
  bool is_short() const;
  void stop(int code, const std::string& reason, int signal_number);
  void close(int index);
  void close_all();
  void finish();
  void warn(const std::string& text) { actions_.say(LogLevel::kWarning, text); }
  int num_nodes() const { return static_cast<int>(nodes_.size()); }
  int count(State state) const;
  bool is_over(int index) const { return nodes_[index].state >= State::kEnded; }
  const std::string& name(int index) const { return options_.nodes[index].name; }

  // Constant after construction.
  const FleetOptions options_;
  FleetActions& actions_;

  std::vector<Node> nodes_;
  std::string endpoint_;  // empty: not known yet
  int server_ = -1;       // the node that was asked to serve
  int num_ended_ = 0;
  SignalEcho echo_;
  int num_signals_ = 0;
  int signal_code_ = 0;                          // exit code of the first signal
  int cause_ = 0;                                // exit code, if this launcher ended the job
  std::string reason_;                           // its reason in words
  std::optional<Clock::time_point> give_up_by_;  // set when a host can't be had
  std::vector<Missing> missing_;                 // hosts that can't be had
  int missing_code_ = 0;                         // exit code of the first one
  std::optional<Clock::time_point> verdict_by_;  // a node is gone: the others must end by then
  int loss_code_ = 0;
  std::string loss_reason_;
  std::optional<Clock::time_point> stop_by_;  // set while the job is being stopped
  bool finished_ = false;
  Clock::time_point now_;  // the time of this step
};

// Returns the job's exit code from those of its nodes, which are in the order of their ends. It is
// 0 if a node ended with 0, which happens only when the whole job succeeded. Otherwise it is the
// most frequent code; of several, the first.
int job_exit_code(const std::vector<int>& codes);

// Tracks which node has the rank that has stdin, and how many bytes its agent has room for. Pure.
class InputFlow {
 public:
  explicit InputFlow(std::size_t num_nodes) : room_(num_nodes, 0) {}

  // An agent has room for more, and may have got that rank. The room is at most
  // channel::kMostInputBytes, whatever the agent says.
  void has_room(int node, const channel::Room& room) {
    room_[node] = std::min(room_[node] + room.num_bytes, channel::kMostInputBytes);
    if (room.has_stdin_rank) node_ = node;
  }
  // The node's channel has ended.
  void gone(int node) {
    room_[node] = 0;
    if (node_ == node) node_ = -1;
  }
  // `num_bytes` were sent to node().
  void sent(std::size_t num_bytes) {
    DDPRUN_CHECK(num_bytes <= room());
    room_[node_] -= num_bytes;
  }

  int node() const { return node_; }  // −1: no node has that rank yet, or any more
  std::size_t room() const { return node_ < 0 ? 0 : room_[node_]; }

 private:
  int node_ = -1;
  std::vector<std::size_t> room_;  // of each node
};

}  // namespace ddprun::launcher
