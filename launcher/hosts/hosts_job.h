// SPDX-License-Identifier: Apache-2.0
// A job on several hosts from one shell: starts the agents (ssh), passes signals to them and their
// output to the console, and ends with the job's one result. ddprun's root object with --hosts.
#pragma once

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/console.h"
#include "agent/watched_child.h"
#include "launcher/hosts/channel_end.h"
#include "launcher/hosts/fleet.h"
#include "launcher/hosts/fleet_plan.h"
#include "launcher/hosts/input_feed.h"
#include "launcher/hosts/own_lines.h"
#include "rendezvous/daemon/service.h"

namespace ddprun::launcher {

class HostsJob : private FleetActions {
 public:
  // `environment`: of the ssh processes.
  HostsJob(FleetPlan plan, const Environment& environment, const LaunchConfig& config,
           ServiceManager manager);

  // Runs the job to its end and prints the report. Returns ddprun's exit status.
  int run();

 private:
  struct Node {
    explicit Node(boost::asio::io_context& io) : words(io) {}
    std::shared_ptr<agent::WatchedChild> process;  // leads to the agent: ssh, or the agent itself
    std::unique_ptr<ChannelEnd> channel;           // over its stdin and stdout; null: not started
    boost::asio::posix::stream_descriptor words;   // its stderr
    std::string said;                              // the end of these
    std::optional<int> wait_status;                // it has ended
    agent::LineSource out, err;
  };

  void start(int node) override;
  void run(int node, const std::string& place, bool serves) override;
  void signal(int node, int number) override;
  void close(int node) override;
  void say(LogLevel level, const std::string& text) override;
  void wake_at(std::optional<Clock::time_point> time) override;
  void finish(int exit_code, const std::string& reason, const std::string& last_words) override;

  void wait_for_signal();
  void wait_for_halt();
  void stand_still();
  void start_process(int index);
  void heard(int index, const channel::Message& message);
  void show(int index, const channel::Output& output);
  void resume(int index);
  void drain(int index);
  void await_words(Node& node);
  bool take_words(Node& node);
  void lose(int index, const std::string& fault);
  void end_lines(int index);
  void kill(Node& node);

  // Constant after construction.
  const FleetPlan plan_;
  const std::vector<std::string> environment_;
  const std::chrono::milliseconds keep_alive_;
  const std::vector<int> warnings_;  // signals: the job will be preempted

  boost::asio::io_context io_;
  rendezvous::Service service_;
  boost::asio::signal_set signals_;
  boost::asio::signal_set halts_;  // SIGTSTP, SIGCONT
  boost::asio::steady_timer timer_;
  agent::Console console_;
  agent::LineSource own_;
  OwnLines own_lines_;
  Fleet fleet_;
  std::deque<Node> nodes_;
  std::array<char, 4096> words_buffer_;
  InputFeed input_;
  bool signalled_ = false;
  int exit_code_ = 0;
  std::string last_words_;
};

}  // namespace ddprun::launcher
