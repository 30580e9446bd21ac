// SPDX-License-Identifier: Apache-2.0
// A node's standing agent: runs a ddprun for each gang that it is given, says how it ended, and
// lets others read what it prints (docs/nodes.md). ddprun-agent's root object. io thread only.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "agent/monitor/node_monitor.h"
#include "common/environment.h"
#include "launcher/metrics/metrics_server.h"
#include "launcher/standing/gang_output.h"
#include "launcher/standing/gang_process.h"
#include "launcher/standing/standing_metrics.h"
#include "launcher/standing/standing_options.h"
#include "rendezvous/daemon/service.h"
#include "rendezvous/gangs/node_link.h"

namespace ddprun::launcher {

class StandingAgent {
 public:
  // Throws Error: a file, directory or port can't be used.
  StandingAgent(StandingOptions options, Environment environment, ServiceManager manager);
  ~StandingAgent();

  // Until a signal ends it, or the rendezvous refuses it for good. Returns the exit status.
  int run();

 private:
  struct Part {
    gangs::HeldPart held;
    std::shared_ptr<GangProcess> process;  // null: it has ended, or never began
    std::chrono::milliseconds stop_time{0};
    bool has_begun = false;  // ddprun is executed
    bool is_stopping = false;
    std::unique_ptr<boost::asio::steady_timer> kill_timer;
    std::unique_ptr<boost::asio::steady_timer> rest_timer;  // it never began, for the node's fault
  };

  void say_hello();
  void heard(const gangs::QueueMessage& message);
  void start(const gangs::StartPart& start);
  void remove_old_output() const;
  void stop(Part& part);
  void began(Part& part);
  void ended(Part& part, int wait_status, const std::string& why);
  void could_not_begin(Part& part, const std::string& why);
  void node_failed(Part& part, const std::string& why);
  void end_part(Part& part, GangEnd how, int exit_code, const std::string& reason);
  void wait_for_signal();
  void outlive_signals();
  void reload_by_signal();
  void reload();
  void leave();
  void finish_if_idle();
  int slots_used() const;
  std::string status() const;
  void serve_metrics();
  StandingMetrics metrics();

  // Constant after construction.
  const StandingOptions options_;
  const Environment environment_;
  const std::string instance_, program_, user_;

  boost::asio::io_context io_;
  rendezvous::Service service_;
  boost::asio::signal_set signals_, outlived_, hang_up_;
  boost::asio::steady_timer end_timer_;
  std::map<std::string, Part> parts_;  // by gang, until they are forgotten
  std::set<std::string> unread_;       // gangs of whose output somebody hasn't read the end
  std::optional<GangOutput> output_;
  std::optional<gangs::NodeLink> link_;
  bool is_connected_ = false;
  bool is_leaving_ = false;
  int exit_status_ = 0;
  std::uint64_t num_welcomes_ = 0;
  GangCounts counts_;
  std::optional<agent::NodeMonitor> node_monitor_;  // never started: it reads when it is asked
  std::optional<MetricsServer> metrics_;            // nullopt, as the above: it is not served
};

}  // namespace ddprun::launcher
