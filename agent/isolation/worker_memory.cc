// SPDX-License-Identifier: Apache-2.0
#include "agent/isolation/worker_memory.h"

#include <csignal>
#include <cstdlib>
#include <sstream>

#include "agent/isolation/worker_limits.h"
#include "common/log.h"

namespace ddprun::agent {
namespace {

std::uint64_t count_in(const std::string& events, const std::string& name) {
  std::istringstream in(events);
  std::string word;
  std::uint64_t number = 0;
  while (in >> word >> number) {
    if (word == name) return number;
  }
  return 0;
}

// "max" is none.
std::optional<std::uint64_t> bytes_in(const std::string& text) {
  std::istringstream in(text);
  std::uint64_t bytes = 0;
  return in >> bytes ? std::optional(bytes) : std::nullopt;
}

}  // namespace

WorkerMemory parse_worker_memory(const std::string& events, const std::string& peak,
                                 const std::string& max) {
  WorkerMemory memory;
  memory.num_at_limit = count_in(events, "oom");
  memory.num_killed = count_in(events, "oom_kill");
  memory.num_ended_whole = count_in(events, "oom_group_kill");
  memory.peak_bytes = bytes_in(peak);
  memory.limit_bytes = bytes_in(max);
  return memory;
}

std::string explain_end(const WorkerMemory& memory, int signal_number) {
  if (memory.num_killed == 0) return {};
  const bool was_killed = signal_number == SIGKILL;
  const bool by_own_limit = memory.num_at_limit > 0;
  const std::string who =
      memory.num_ended_whole > 0
          ? "all of it"
          : concat(memory.num_killed, memory.num_killed == 1 ? " process" : " processes", " of it");
  std::string text = concat(
      was_killed ? "" : "perhaps ", "ran out: the kernel's OOM killer killed ", who, ", ",
      by_own_limit ? "at its own limit" : "not at its own limit: at one above, or the machine's");
  text += " (";
  if (memory.peak_bytes) text += concat("peak ", size_text(*memory.peak_bytes), ", ");
  text += memory.limit_bytes ? "limit " + size_text(*memory.limit_bytes) : "no limit of its own";
  text += concat("; ", memory.events_file, ": oom ", memory.num_at_limit, ", oom_kill ",
                 memory.num_killed, ")");
  if (!was_killed) text += ", but not the worker itself";
  return text;
}

}  // namespace ddprun::agent
