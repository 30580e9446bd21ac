// SPDX-License-Identifier: Apache-2.0
#include "agent/monitor/worker_use.h"

#include <algorithm>
#include <utility>

#include "agent/hang/socket_bytes.h"
#include "common/process_facts.h"

namespace ddprun::agent {
namespace {

constexpr std::size_t kMaxDescriptors = 4096;  // of one process

void count_sockets(const std::vector<pid_t>& family, const std::optional<SocketBytes>& connections,
                   WorkerUse& use) {
  std::vector<std::uint64_t> sockets;
  for (const pid_t pid : family) add_socket_inodes(pid, kMaxDescriptors, sockets);
  std::sort(sockets.begin(), sockets.end());
  sockets.erase(std::unique(sockets.begin(), sockets.end()), sockets.end());
  use.num_sockets = sockets.size();
  use.num_connections.reset();
  if (!connections) return;
  use.num_connections = static_cast<std::size_t>(
      std::count_if(sockets.begin(), sockets.end(),
                    [&](std::uint64_t inode) { return connections->contains(inode); }));
}

}  // namespace

std::vector<std::optional<WorkerUse>> WorkerUseReader::look(const std::vector<pid_t>& pids,
                                                            Clock::time_point now) {
  workers_.resize(std::min(pids.size(), kMostWorkers));
  std::vector<std::optional<WorkerUse>> uses(workers_.size());
  std::optional<SocketBytes> connections;
  bool asked = false;
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    auto& worker = workers_[i];
    if (worker && worker->process.pid() != pids[i]) worker.reset();
    if (pids[i] <= 0) continue;
    if (!worker) worker.emplace(pids[i]);
    auto& since = worker->family_looked_at;
    const bool is_due = !since || now - *since >= kFamilyInterval;
    const auto facts = worker->process.look(is_due);
    if (!facts) continue;
    const std::vector<pid_t> family = worker->process.family();
    WorkerUse& use = worker->last;
    use.cpu = facts->cpu;
    use.resident_bytes = 0;
    for (const pid_t pid : family) use.resident_bytes += resident_bytes(pid).value_or(0);
    if (is_due) {
      since = now;
      if (!std::exchange(asked, true)) connections = tcp_socket_bytes();
      count_sockets(family, connections, use);
    }
    uses[i] = use;
  }
  return uses;
}

}  // namespace ddprun::agent
