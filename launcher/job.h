// SPDX-License-Identifier: Apache-2.0
// A prepared job, run: the rendezvous if this node serves it, the node's agent, the signals, and
// the report at the end. ddprun's root object.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/console.h"
#include "agent/isolation/worker_cgroups.h"
#include "agent/node_agent.h"
#include "agent/output/log_tree.h"
#include "agent/preflight_command.h"
#include "common/clock.h"
#include "launcher/console_log.h"
#include "launcher/endpoint_claim.h"
#include "launcher/metrics/metrics_server.h"
#include "launcher/preemption_watch.h"
#include "launcher/prepare.h"
#include "launcher/report/job_records.h"
#include "rendezvous/daemon/daemon.h"
#include "rendezvous/daemon/service.h"

namespace ddprun::launcher {

class Job {
 public:
  // Takes the endpoint's port where this node serves it. Throws as claim_endpoint.
  Job(JobPlan plan, ServiceManager manager);
  ~Job();

  // Runs the job to its end and prints the report. Returns ddprun's exit status.
  int run();

 private:
  std::string status() const;
  agent::ConsoleOptions console_options();
  EndpointClaim claim();
  void report(const std::string& text) const;
  void took_rank_0(int world_size);
  void serve_metrics(std::vector<UniqueFd> listeners);
  agent::NodeAgentOptions agent_options() const;
  void tell(LogLevel level, const std::string& text);
  void make_cgroups();
  void wait_for_signal();
  void got_signal(int number);
  void wait_for_abandonment();
  void begin();
  void run_doctor();
  void run_preflight();
  agent::PreflightCommandOptions preflight_options(std::string command) const;
  void stay_out(const std::string& reason);
  void unreached(const std::string& why);
  std::vector<Endpoint> connect_to() const;
  void say_what_is_waited_for();
  void lose_patience();
  void say_what_goes_on(const std::vector<std::string>& jobs);
  void serve_rendezvous(std::vector<UniqueFd> listeners);
  void succeed_rendezvous();
  void finish(const membership::agent_action::Exit& exit);
  std::string report_text() const;
  void report_now();

  // Constant after construction.
  JobPlan plan_;  // constant after claim()
  const Clock::time_point begun_;
  EndpointClaim claim_;

  boost::asio::io_context io_;
  rendezvous::Service service_;
  boost::asio::signal_set signals_;
  boost::asio::steady_timer patience_;
  boost::asio::posix::stream_descriptor lifeline_;  // under a channel only
  agent::Console console_;
  agent::LineSource own_lines_;  // ddprun's own among the workers'
  std::shared_ptr<agent::LogTree>
      logs_;  // null: no files. Second owners: the agent, the log thread
  std::unique_ptr<JobRecords> records_;
  std::unique_ptr<ConsoleLog> log_;
  std::unique_ptr<rendezvous::Daemon> daemon_;
  std::unique_ptr<agent::WorkerCgroups> cgroups_;  // null: none
  std::unique_ptr<agent::NodeAgent> agent_;
  std::unique_ptr<MetricsServer> metrics_;  // null: it is not served
  std::unique_ptr<PreemptionWatch> preemption_;
  std::unique_ptr<agent::PreflightCommand> preflight_;  // null: none, or it was ended
  std::optional<membership::agent_action::Exit> exit_;
  std::string why_unreached_;  // the last attempt to reach the rendezvous; empty: none has failed
  std::string unfit_;          // why this node stays out of the job, for the others
  bool impatient_ = false;     // patience_ is over
  bool signalled_ = false;
  bool reported_ = false;
  bool said_store_ = false;  // how the workers reach it
};

}  // namespace ddprun::launcher
