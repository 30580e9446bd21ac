// SPDX-License-Identifier: Apache-2.0
// What each worker of a node may use at most, as it was asked for (docs/isolation.md). Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/cpu_set.h"

namespace ddprun::agent {

// Of one block device, in a second; nullopt: as much as it gives.
struct IoLimit {
  std::string device;  // as given: a path, or MAJOR:MINOR
  std::optional<std::uint64_t> read_bytes = {}, write_bytes = {}, reads = {}, writes = {};

  bool operator==(const IoLimit&) const = default;
};

enum class CpusetSource { kNone, kList, kBinding };

struct WorkerLimits {
  std::optional<std::uint64_t> memory_bytes = {};  // of the worker and all that it starts; no swap
  std::optional<std::uint64_t> pids = {};          // processes and threads, likewise
  CpusetSource cpuset_source = CpusetSource::kNone;
  CpuSet cpuset = {};  // of kList
  std::vector<IoLimit> io = {};
  bool required = false;  // what can't be enforced is an error

  bool any() const {
    return memory_bytes || pids || cpuset_source != CpusetSource::kNone || !io.empty();
  }
  bool operator==(const WorkerLimits&) const = default;
};

// Each sets its part from what was typed; "none" takes it away. Returns "" or what is wrong, as in
// "wants a number …".
std::string parse_memory_limit(std::string_view text, WorkerLimits& limits);
std::string parse_pids_limit(std::string_view text, WorkerLimits& limits);
std::string parse_cpuset(std::string_view text, WorkerLimits& limits);
// DEVICE:KEY=VALUE,… of several devices with ";" between them.
std::string parse_io_limits(std::string_view text, WorkerLimits& limits);
std::string parse_limits_mode(std::string_view text, WorkerLimits& limits);

// One limit, for people and for --dry-run.
struct ShownLimit {
  std::string option;  // "worker-memory"
  std::string value;   // "64 GiB", "0-7", "/data:rbps=1073741824"
};
std::vector<ShownLimit> shown_limits(const WorkerLimits& limits);

// "512 bytes", "96 MiB", "1.5 GiB".
std::string size_text(std::uint64_t bytes);
std::string to_text(const IoLimit& limit);

}  // namespace ddprun::agent
