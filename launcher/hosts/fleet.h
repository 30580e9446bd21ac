// SPDX-License-Identifier: Apache-2.0
// The agents of a job that one launcher starts: which is started when, who serves the rendezvous,
// when the rest is stopped, and what the job's one result is. Pure: step(event, now) → actions.
// What happens in the job itself is the rendezvous' affair.
#pragma once

#include <chrono>
#include <csignal>
#include <optional>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/log.h"
#include "common/variant.h"
#include "launcher/hosts/channel_codec.h"

namespace ddprun::launcher {

struct FleetNode {
  std::string name;      // as the user named the host
  std::string address;   // likewise, without "user@"
  bool is_here = false;  // this machine: started without ssh
};

struct FleetOptions {
  std::vector<FleetNode> nodes = {};  // in the order of their node ranks
  int min_nodes = 1;                  // with fewer there is no job
  // That stop a node's ddprun in order; the first one is used here. Not empty.
  std::vector<int> stop_signals = {SIGTERM, SIGINT, SIGHUP, SIGQUIT};
  int fanout = 64;            // that are being reached at once
  std::string endpoint = {};  // of the rendezvous; empty: one of the nodes serves it
  std::chrono::milliseconds reach_timeout{60'000};     // from the start of ssh to its agent's hello
  std::chrono::milliseconds gather_time{1'000};        // from a host that can't be had to giving up
  std::chrono::milliseconds stop_timeout{50'000};      // from the first signal to the end
  std::chrono::milliseconds verdict_patience{10'000};  // the rendezvous says what a loss means
};

namespace fleet_event {
struct Begin {};
struct Hello {
  int node = 0;
  channel::Hello hello;
};
struct Serving {
  int node = 0;
  std::string endpoint;
};
struct End {
  int node = 0;
  channel::End end;
};
// The process that held the channel has ended, or the channel is of no use.
struct Gone {
  int node = 0;
  int code = 0;      // exit code that says it
  std::string text;  // one line, without the host
};
struct Signalled {
  int number = 0;
  bool is_warning = false;  // of preemption: passed on, and no more
};
struct Tick {};
}  // namespace fleet_event

using FleetEvent = variants::variant<fleet_event::Begin, fleet_event::Hello, fleet_event::Serving,
                                     fleet_event::End, fleet_event::Gone, fleet_event::Signalled,
                                     fleet_event::Tick>;

namespace fleet_action {
// Starts the process that leads to the node's agent.
struct Start {
  int node = 0;
};
// Sends the job.
struct Run {
  int node = 0;
  std::string serve_at;  // not empty: serves the rendezvous at this host
  std::string endpoint;  // else: where it is
};
struct Signal {
  int node = 0;
  int number = 0;
};
// Ends the channel and what holds it. No event comes from this node any more.
struct Close {
  int node = 0;
};
struct Say {
  LogLevel level = LogLevel::kInfo;
  std::string text;
};
// Last, once.
struct Finish {
  int exit_code = 0;
  std::string reason;      // where this launcher ended the job: one line
  std::string last_words;  // else: the nodes' report; several lines
};
}  // namespace fleet_action

using FleetAction = variants::variant<fleet_action::Start, fleet_action::Run, fleet_action::Signal,
                                      fleet_action::Close, fleet_action::Say, fleet_action::Finish>;

class Fleet {
 public:
  explicit Fleet(FleetOptions options);

  std::vector<FleetAction> step(const FleetEvent& event, Clock::time_point now);
  // When a Tick is due; nullopt: nothing is waited for by the clock.
  std::optional<Clock::time_point> next_deadline() const;

 private:
  enum class State {
    kWaiting,     // for its turn
    kConnecting,  // no hello yet
    kReady,       // hello, no job yet
    kRunning,     // has the job
    kEnded,       // said how its ddprun ended
    kLost,        // can't be heard any more
  };
  struct Missing {
    std::string name, loss;
  };
  struct Node {
    State state = State::kWaiting;
    Clock::time_point reach_by;  // kConnecting
    channel::Hello hello;
    channel::End end;  // kEnded
    int ended_as = 0;  // place in the order of ends
  };

  void on(const fleet_event::Begin& event);
  void on(const fleet_event::Hello& event);
  void on(const fleet_event::Serving& event);
  void on(const fleet_event::End& event);
  void on(const fleet_event::Gone& event);
  void on(const fleet_event::Signalled& event);
  void on(const fleet_event::Tick& event);
  int another_than(int signal_number) const;

  void start_more();
  void run_ready();
  int server() const;
  std::optional<std::string> serve_at(int server) const;
  void lose(int index, int code, const std::string& text);
  void give_up();
  void await_verdict(int code, const std::string& reason);
  void fail_alone(int index, int code);
  bool is_short() const;
  void stop(int code, const std::string& reason, int signal_number);
  void close(int index);
  void close_all();
  void finish_when_over();
  fleet_action::Finish result() const;
  const std::string& name(int index) const { return options_.nodes[index].name; }
  template <typename Action>
  void act(Action action) {
    out_.emplace_back(std::move(action));
  }

  // Constant after construction.
  const FleetOptions options_;

  std::vector<Node> nodes_;
  std::string endpoint_;  // empty: not known yet
  int server_ = -1;       // the node that serves, once it was asked to
  int num_ended_ = 0;
  int num_signals_ = 0;
  int signal_code_ = 0;                          // of the first one
  int cause_ = 0;                                // exit code where this launcher ended the job
  std::string reason_;                           // likewise, in words
  std::optional<Clock::time_point> give_up_by_;  // a host can't be had: so are others, perhaps
  std::vector<Missing> missing_;                 // these
  int missing_code_ = 0;                         // of the first one
  std::optional<Clock::time_point> verdict_by_;  // a node is gone, the others have to end by then
  int loss_code_ = 0;
  std::string loss_reason_;
  std::optional<Clock::time_point> stop_by_;  // set: being stopped
  bool finished_ = false;

  // During step() only.
  Clock::time_point now_;
  std::vector<FleetAction> out_;
};

// The job's exit code from those of its nodes, in the order in which they ended: 0 where a node
// ended well, which it does only when all of the job did; else the one that most have, of several
// the first.
int job_exit_code(const std::vector<int>& codes);

}  // namespace ddprun::launcher
