// SPDX-License-Identifier: Apache-2.0
#include "agent/monitor/worker_use.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "agent/hang/socket_bytes.h"

namespace ddprun::agent {
namespace {

constexpr std::size_t kMaxDescriptors = 4096;  // of one process

std::uint64_t resident_bytes(pid_t pid) {
  static const auto page_bytes = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  std::ifstream file("/proc/" + std::to_string(pid) + "/statm");
  std::uint64_t size = 0, resident = 0;
  return file >> size >> resident ? resident * page_bytes : 0;
}

}  // namespace

std::vector<std::optional<WorkerUse>> WorkerUseReader::look(const std::vector<pid_t>& pids) {
  processes_.resize(std::min(pids.size(), kMostWorkers));
  std::vector<std::optional<WorkerUse>> uses(processes_.size());
  std::optional<SocketBytes> connections;
  bool asked = false;
  for (std::size_t i = 0; i < processes_.size(); ++i) {
    auto& process = processes_[i];
    if (process && process->pid() != pids[i]) process.reset();
    if (pids[i] <= 0) continue;
    if (!process) process.emplace(pids[i]);
    const auto facts = process->look(true);
    if (!facts) continue;
    WorkerUse& use = uses[i].emplace();
    use.cpu = facts->cpu;
    std::vector<std::uint64_t> sockets;
    for (const pid_t pid : process->family()) {
      use.resident_bytes += resident_bytes(pid);
      add_socket_inodes(pid, kMaxDescriptors, sockets);
    }
    std::sort(sockets.begin(), sockets.end());
    sockets.erase(std::unique(sockets.begin(), sockets.end()), sockets.end());
    use.num_sockets = sockets.size();
    if (!asked) connections = tcp_socket_bytes();
    asked = true;
    if (!connections) continue;
    use.num_connections = static_cast<std::size_t>(
        std::count_if(sockets.begin(), sockets.end(),
                      [&](std::uint64_t inode) { return connections->contains(inode); }));
  }
  return uses;
}

}  // namespace ddprun::agent
