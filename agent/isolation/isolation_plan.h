// SPDX-License-Identifier: Apache-2.0
// Plans how this machine can keep the limits that were asked for (docs/isolation.md). The plan says
// what is written into which file of which worker's cgroup, what is enforced otherwise, and what
// isn't.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "agent/isolation/cgroup_tree.h"
#include "common/cpu_set.h"

namespace ddprun::agent {

// Limits for one block device, per second; nullopt: no limit.
struct IoLimit {
  std::string device;  // as given: a path, or MAJOR:MINOR
  std::optional<std::uint64_t> read_bytes = {}, write_bytes = {}, reads = {}, writes = {};

  bool operator==(const IoLimit&) const = default;
};

enum class CpusetSource { kNone, kList, kBinding };

// The limits of each worker of a node, as they were asked for.
struct WorkerLimits {
  // For the worker and all that it starts; swap is off.
  std::optional<std::uint64_t> memory_bytes = {};
  // Processes and threads, the worker's and those of all that it starts.
  std::optional<std::uint64_t> pids = {};
  CpusetSource cpuset_source = CpusetSource::kNone;
  CpuSet cpuset = {};  // for kList
  std::vector<IoLimit> io = {};
  bool required = false;  // a limit that can't be enforced is an error

  bool any() const {
    return memory_bytes || pids || cpuset_source != CpusetSource::kNone || !io.empty();
  }
  bool operator==(const WorkerLimits&) const = default;
};

// Each sets its part from the option's text; "none" removes the limit. Returns "" or what is wrong,
// such as "wants a number …".
std::string parse_memory_limit(std::string_view text, WorkerLimits& limits);
std::string parse_pids_limit(std::string_view text, WorkerLimits& limits);
std::string parse_cpuset(std::string_view text, WorkerLimits& limits);
// Parses DEVICE:KEY=VALUE,… of several devices with ";" between them.
std::string parse_io_limits(std::string_view text, WorkerLimits& limits);
std::string parse_limits_mode(std::string_view text, WorkerLimits& limits);

// One limit as people and --dry-run see it.
struct ShownLimit {
  std::string option;  // "worker-memory"
  std::string value;   // "64 GiB", "0-7", "/data:rbps=1073741824"
};
std::vector<ShownLimit> shown_limits(const WorkerLimits& limits);

// Returns "512 bytes", "96 MiB", "1.5 GiB".
std::string size_text(std::uint64_t bytes);
std::string to_text(const IoLimit& limit);

// One value of a worker's cgroup.
struct CgroupSetting {
  std::string file;          // "memory.max"
  std::string value;         // as it is written
  std::string seen_in = {};  // the file that shows the value in force; empty: the same file
  bool may_lack = false;     // no error on a kernel without this file

  bool operator==(const CgroupSetting&) const = default;
};

struct UnenforcedLimit {
  std::string option;  // "worker-memory"
  std::string why;
};

struct IsolationPlan {
  WorkerLimits limits;
  CgroupPlace place;
  bool makes_cgroups = false;            // a leaf for each worker
  std::vector<std::string> controllers;  // those that the leaves need; some may be enabled already
  std::vector<std::vector<CgroupSetting>> workers;  // by local rank, of the leaves
  // By local rank, where CPU affinity enforces a cpuset; else empty.
  std::vector<CpuSet> affinity;
  std::vector<UnenforcedLimit> unenforced;
  std::vector<std::string> problems;  // errors on any machine: one line each

  // Returns one line of all that is not enforced, and what is done instead; empty: all is enforced.
  std::string shortfall() const;
};

struct IsolationRequest {
  WorkerLimits limits;
  int num_workers = 1;
  std::vector<CpuSet> bound;  // by local rank: --numa-binding's plan; empty: none
  CpuSet allowed;             // CPUs that ddprun may use
  std::size_t page_bytes = 4096;
};

// `place` is used only where a limit is asked for.
IsolationPlan plan_isolation(const IsolationRequest& request, const CgroupPlace& place,
                             const CgroupTree& tree);

// Compares a setting with what its file shows: returns "" or the difference, such as `is "max", not
// "4096"`.
std::string difference(const CgroupSetting& setting, const std::string& seen);

}  // namespace ddprun::agent
