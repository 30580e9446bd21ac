// SPDX-License-Identifier: Apache-2.0
// Facts that the checks of `ddprunctl doctor` judge: all that was seen of this node, as values.
// Gathering them starts no work on a GPU and changes nothing. Questions that may block run in
// processes of their own.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "agent/gpu/gpu_lines.h"
#include "common/environment.h"
#include "ctl/doctor/readings.h"

namespace ddprun::doctor {

// A question to a service or device that may never answer.
template <typename T>
struct Asked {
  std::string not_asked = "not asked";  // why it wasn't asked; empty: it was asked
  std::optional<T> answer;              // nullopt, although it was asked: no answer came in time
};

struct DirectorySpace {
  std::string path;
  int error = 0;                                  // errno
  std::uint64_t total_bytes = 0, free_bytes = 0;  // without the blocks reserved for root
  bool is_read_only = false;
};

struct NameAnswer {
  std::string failure;                 // why there are no addresses
  std::vector<std::string> addresses;  // numeric
};

// The route from this node to the rendezvous.
struct RouteAnswer {
  std::string failure;
  std::string interface, address;  // "eth0", "10.0.0.1"
};

// The answer of the rendezvous' status page.
struct EndpointAnswer {
  std::string failure;
  std::string version;
  std::optional<double> skew_seconds;  // the rendezvous' clock minus this node's
};

// Whether the readers of stacks are there, which show where ranks are that hang.
struct StackReaders {
  bool libdw = false;   // native frames
  bool py_spy = false;  // Python's
};

struct GpuMemoryAnswer {
  bool is_known = false;  // false: there is no NVML here, or it failed
  std::string holders;    // "GPU 0: 12.0 GiB by pid 71"
};

struct GpuStateAnswer {
  bool is_known = false;  // false: there is no NVML here, or it failed
  std::vector<agent::GpuReading> readings;
};

// The PyTorch, CUDA and NCCL that a Python worker would load. They are read from the names of the
// installed packages: no Python is started.
struct WorkerPackages {
  std::string folder;             // "/opt/venv/lib/python3.11/site-packages"; empty: no PyTorch
  std::string torch, cuda, nccl;  // "2.11.0+cu128", "12.8", "2.27.5"; empty: not known
  std::string nccl_cuda;          // "12": the CUDA version that this NCCL is built for
};

struct Facts {
  Readings files;
  Environment environment;
  uid_t uid = 0;
  std::string host_name, endpoint;  // empty endpoint: none was given
  std::set<std::string> interfaces;
  std::optional<bool> is_clock_synchronised;  // nullopt: the kernel doesn't say
  std::optional<double> cpu_quota;            // of this process' cgroups; nullopt: there is none
  Asked<DirectorySpace> shared_memory, tmp_dir, state_dir, log_dir;
  Asked<NameAnswer> own_name;
  Asked<RouteAnswer> route;
  Asked<EndpointAnswer> rendezvous;
  Asked<StackReaders> stack_readers;
  Asked<bool> rdma, link_speeds;  // their files are among `files`
  Asked<GpuMemoryAnswer> gpu_memory;
  Asked<GpuStateAnswer> gpu_state;
  WorkerPackages packages;
  std::optional<std::string> kernel_log;  // nullopt: it can't be read
};

struct FactsOptions {
  std::string root = "/";
  std::string endpoint, log_dir, state_dir;
  // Asks the rendezvous. It is called in a process of its own.
  std::function<EndpointAnswer()> ask_endpoint;
  std::uint64_t gpu_memory_bytes = 0;                // GPU processes that hold less aren't reported
  std::function<bool(const char* check)> is_wanted;  // facts that no check wants aren't gathered
  std::chrono::milliseconds limit{500};              // for all questions that may block, together
};

// Gathers the facts. Takes hardly longer than `limit`. One thread.
Facts gather_facts(const FactsOptions& options);

// Reads, in this process, the files that the kernel answers at once.
void read_files(const Root& root, Readings& files);
// These two may block, since an adapter's firmware may answer slowly.
Readings read_rdma_files(const Root& root);
Readings read_link_speeds(const Root& root);

// Returns the folders where a worker's packages may be, the first choice first. The order: the
// environment of $PYTHON_EXEC, of this program's own folder, $VIRTUAL_ENV, $CONDA_PREFIX, then the
// system's.
std::vector<std::string> package_prefixes(const Environment& environment,
                                          const std::string& own_folder);

// Returns the packages in the first prefix that has PyTorch.
WorkerPackages find_packages(const Root& root, const std::vector<std::string>& prefixes);

}  // namespace ddprun::doctor
