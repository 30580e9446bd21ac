// SPDX-License-Identifier: Apache-2.0
// The agent's side of one warden (docs/warden.md): starts the process, sends requests, passes on
// its reports, and sees its end by pidfd. io thread only.
#pragma once

#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/isolation/worker_cgroups.h"
#include "agent/warden/protocol.h"
#include "agent/warm/warm_helper.h"
#include "agent/watched_child.h"
#include "common/clock.h"
#include "common/cpu_set.h"
#include "common/unique_fd.h"

namespace ddprun::agent {

// The arguments for the start of a worker: three descriptors (borrowed for the call) and the
// command.
struct WardenSpawn {
  std::uint32_t worker = 0;
  const std::vector<std::string>* argv = nullptr;
  const std::vector<std::string>* environment = nullptr;
  const std::string* working_directory = nullptr;
  int stdin_fd = -1;
  int stdout_fd = -1;
  int stderr_fd = -1;
  CpuSet cpus;         // empty: those of the agent
  int cgroup_fd = -1;  // the worker's own; −1: the cgroup of the warden's workers
};

class WardenProcess : public std::enable_shared_from_this<WardenProcess> {
 public:
  struct Events {
    std::function<void(const warden::Report&)> report;
    // Called once, after its last report, when it is reaped.
    std::function<void(int wait_status)> gone;
  };

  // Returns the default path of ddprun-warden: beside this program, else in ../libexec/ddprun.
  static std::string default_path();

  // Starts the process in a session of its own. At its end it removes `directory` with the workers'
  // socket in it (agent_socket.h; empty: nothing), and `cgroup`, which it kills. If `cgroup` is
  // null, it makes one for itself, if it may. With `warm`, its first `num_warm` workers have
  // imported modules already, where that is possible. Throws Error(kSystem) naming the file.
  static std::shared_ptr<WardenProcess> launch(boost::asio::io_context& io, const std::string& path,
                                               const std::string& directory, Events events,
                                               const RoundCgroup* cgroup = nullptr,
                                               WarmHelper* warm = nullptr, int num_warm = 0);
  ~WardenProcess();

  pid_t pid() const { return child_->pid(); }

  // Throws Error when descriptors run out. It is no error if the warden is gone.
  void spawn(const WardenSpawn& spawn);
  // Sends a request. A warden that is stopped (SIGSTOP) is continued at once: it could neither obey
  // nor report. Every request continues it, as do lease() and hang_up().
  void request(warden::RequestType type, int signal_number = 0);

  // Sets the lease. If no later time is given before `until`, the warden kills every descendant by
  // itself, and reports kFenced. It does so also when this process stands still. nullopt: never.
  void lease(std::optional<Clock::time_point> until);
  // Sends SIGKILL to what the worker that was `pid` left behind in its session.
  void clear(pid_t pid);

  // Closes the socket: the warden kills every descendant and ends, then `gone` is called.
  void hang_up();
  // Does the same as hang_up(), but no event comes any more; the process is still reaped.
  void abandon();

 private:
  struct Outgoing {
    warden::Request request;
    std::vector<UniqueFd> fds;
  };

  WardenProcess(boost::asio::io_context& io, UniqueFd socket, Events events);
  void wait_for_stop();
  void resume();
  void post(const warden::Request& wanted, std::vector<UniqueFd> fds = {});
  void send_queued();
  bool send_now(const Outgoing& outgoing);
  void wait_readable();
  void read_reports();
  void on_process_end(int wait_status);

  std::shared_ptr<WatchedChild> child_;
  boost::asio::posix::stream_descriptor socket_;
  boost::asio::signal_set stops_;  // SIGCHLD
  Events events_;
  std::deque<Outgoing> queue_;  // requests for which the socket had no room
  bool waiting_writable_ = false;
};

// Kills and reaps what a killed warden leaves behind. Its workers die with it (PDEATHSIG). All that
// they had started becomes the agent's child, since the agent is a subreaper, too. io thread only.
class OrphanSweep : public std::enable_shared_from_this<OrphanSweep> {
 public:
  // `done` is called from the io context once none is left. This program's own session, its helpers
  // (HelperProcess, which living wardens also are) and what they started are left alone. No worker
  // of the dead warden is among them.
  static std::shared_ptr<OrphanSweep> start(boost::asio::io_context& io,
                                            std::function<void()> done);
  // Ends the sweep: no call of `done` any more.
  void abandon() { done_ = nullptr; }

 private:
  OrphanSweep(boost::asio::io_context& io, std::function<void()> done);
  void step();

  boost::asio::steady_timer timer_;
  std::function<void()> done_;
};

}  // namespace ddprun::agent
