// SPDX-License-Identifier: Apache-2.0
// A job on several hosts from one shell: starts the agents (ssh), passes signals to them and their
// output to the console, and ends with the job's one result. ddprun's root object with --hosts.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <memory>
#include <string>
#include <vector>

#include "agent/console.h"
#include "launcher/hosts/fleet.h"
#include "launcher/hosts/fleet_plan.h"
#include "launcher/hosts/input_feed.h"
#include "launcher/hosts/node_channel.h"
#include "launcher/hosts/own_lines.h"
#include "rendezvous/daemon/service.h"

namespace ddprun::launcher {

class HostsJob {
 public:
  // `environment`: of the ssh processes. Precondition: the plan has no problems.
  HostsJob(FleetPlan plan, const Environment& environment, const LaunchConfig& config,
           ServiceManager manager);
  ~HostsJob();

  // Runs the job to its end and prints the report. Returns ddprun's exit status.
  int run();

 private:
  struct Node {
    std::shared_ptr<NodeChannel> channel;  // null: not started, or over
    agent::LineSource out;
    agent::LineSource err;
  };

  agent::ConsoleOptions console_options(agent::SlowReader slow_reader);
  void tell(LogLevel level, const std::string& text);
  void wait_for_signal();
  void wait_for_halt();
  void stand_still();
  void happened(const FleetEvent& event);
  void perform(const fleet_action::Start& action);
  void perform(const fleet_action::Run& action);
  void perform(const fleet_action::Signal& action);
  void perform(const fleet_action::Close& action);
  void perform(const fleet_action::Say& action);
  void perform(const fleet_action::Finish& action);
  bool heard(int node, channel::FromAgent message);
  bool show(int node, const channel::Output& output);
  void gone(int node, const NodeChannelEvents::Gone& how);
  void end_lines(int node);
  void set_timer();

  // Constant after construction.
  const FleetPlan plan_;
  const std::vector<std::string> environment_;
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
  std::vector<Node> nodes_;
  InputFeed input_;
  std::vector<FleetEvent> events_;  // that came while one was being performed
  bool stepping_ = false;
  bool signalled_ = false;
  int exit_code_ = 0;
  std::string last_words_;
};

}  // namespace ddprun::launcher
