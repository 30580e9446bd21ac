// SPDX-License-Identifier: Apache-2.0
#include "agent/orphan_sweep.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <utility>
#include <vector>

#include "agent/warden/process_tree.h"
#include "common/helper_processes.h"

namespace ddprun::agent {
namespace {

// A rare path: looking again is simpler than a pidfd on each of a changing set.
constexpr std::chrono::milliseconds kInterval{2};

struct Found {
  std::vector<pid_t> pids;
};

warden::Visit choose(pid_t pid, void* context) {
  if (is_helper_process(pid) || ::getsid(pid) == ::getsid(0)) return warden::Visit::kPrune;
  static_cast<Found*>(context)->pids.push_back(pid);
  return warden::Visit::kSignal;
}

}  // namespace

std::shared_ptr<OrphanSweep> OrphanSweep::start(boost::asio::io_context& io,
                                                std::function<void()> done) {
  std::shared_ptr<OrphanSweep> sweep(new OrphanSweep(io, std::move(done)));
  sweep->step();
  return sweep;
}

OrphanSweep::OrphanSweep(boost::asio::io_context& io, std::function<void()> done)
    : timer_(io), done_(std::move(done)) {}

void OrphanSweep::step() {
  Found found;
  warden::signal_descendants(SIGKILL, &choose, &found);
  // Only our own children can be reaped; the others become ours when their parents are.
  for (const pid_t pid : found.pids) ::waitpid(pid, nullptr, WNOHANG);
  timer_.expires_after(found.pids.empty() ? std::chrono::milliseconds(0) : kInterval);
  timer_.async_wait([self = shared_from_this(),
                     is_done = found.pids.empty()](const boost::system::error_code& error) {
    if (error) return;
    if (!is_done) return self->step();
    if (const auto done = std::exchange(self->done_, nullptr)) done();
  });
}

}  // namespace ddprun::agent
