// SPDX-License-Identifier: Apache-2.0
// What the kernel counted of a worker's memory in its own cgroup, and what that says of its end.
// Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace ddprun::agent {

struct WorkerMemory {
  std::string events_file;         // where the counts are from
  std::uint64_t num_at_limit = 0;  // memory.events: oom. Its own limit left no room
  std::uint64_t num_killed = 0;    // likewise: oom_kill, by whichever limit
  // Likewise: oom_group_kill, Linux 5.17. Of what ended whole; then a process may count twice
  // above.
  std::uint64_t num_ended_whole = 0;
  std::optional<std::uint64_t> peak_bytes = {};   // Linux 5.19
  std::optional<std::uint64_t> limit_bytes = {};  // nullopt: none of its own
};

// From the texts of memory.events, memory.peak and memory.max (empty: not there).
WorkerMemory parse_worker_memory(const std::string& events, const std::string& peak,
                                 const std::string& max);

// "ran out: …" where it was ended by SIGKILL and the kernel's OOM killer was at work in its cgroup,
// "perhaps ran out: …" where it ended otherwise; empty: the kernel killed nothing.
std::string explain_end(const WorkerMemory& memory, int signal_number);

}  // namespace ddprun::agent
