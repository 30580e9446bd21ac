// SPDX-License-Identifier: Apache-2.0
// Where the kernel counts for a process what its OOM killer does: the memory cgroup, version 2 or
// 1, also in a container. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun::agent {

struct MemoryCgroup {
  // As this process sees them, nearest first, up to the top of what is mounted here. With version 2
  // memory is counted in the nearest one that has a memory.events.
  std::vector<std::string> directories;
  bool is_v2 = false;

  const char* events_file() const { return is_v2 ? "memory.events" : "memory.oom_control"; }
  const char* limit_file() const { return is_v2 ? "memory.max" : "memory.limit_in_bytes"; }
};

// Of a process, by the text of its /proc/PID/cgroup and of our /proc/self/mountinfo. nullopt: no
// such hierarchy is mounted here, or its cgroup lies outside what is.
std::optional<MemoryCgroup> memory_cgroup(std::string_view cgroup_text,
                                          std::string_view mountinfo_text);

// "oom_kill 3" of a memory.events, memory.oom_control or /proc/vmstat; nullopt: it isn't there.
std::optional<std::uint64_t> oom_kills(std::string_view text);

// Of a memory.max or memory.limit_in_bytes. nullopt: there is none.
std::optional<std::uint64_t> memory_limit_bytes(std::string_view text);

}  // namespace ddprun::agent
