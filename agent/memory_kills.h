// SPDX-License-Identifier: Apache-2.0
// Whether the kernel's OOM killer was at work while a round's workers ran. It counts what it kills,
// in the workers' memory cgroup and for the whole host; the counts are read when a round begins and
// when a worker has failed. Without such evidence nothing is said. io thread only.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "agent/memory_cgroup.h"

namespace ddprun::agent {

class MemoryKills {
 public:
  // `root`: what stands before /proc and /sys; a test's directory.
  explicit MemoryKills(std::string root = "");

  // No worker of it runs yet.
  void begin_round();
  // By local rank. Workers may be in a cgroup of their warden's below ours, which counts for itself
  // where ours is the root, which doesn't.
  void workers_run(const std::vector<pid_t>& pids);

  // What is to be said of a worker that failed by this signal (0: it exited): "ran out: …" where it
  // was killed by SIGKILL and the count of its cgroup has grown, "perhaps ran out: …" where another
  // process than the worker was killed there, or only the host's count is known. Empty: nothing.
  // One kill explains one death by SIGKILL.
  std::string explain(int signal_number);

 private:
  struct Count {
    std::string file;
    std::uint64_t killed = 0;  // when the round began, and those that explained a death since
  };

  std::optional<std::uint64_t> read_kills(const std::string& path) const;
  std::optional<Count> count_of(const MemoryCgroup& cgroup) const;
  std::optional<std::uint64_t> limit() const;

  const std::string root_;
  std::string mountinfo_;               // read once
  std::optional<MemoryCgroup> cgroup_;  // ours, or the workers'
  std::optional<Count> own_;            // nullopt: the cgroup's count can't be read
  std::optional<Count> hosts_;          // read only where there is no other
};

}  // namespace ddprun::agent
