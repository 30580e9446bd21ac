// SPDX-License-Identifier: Apache-2.0
// A job as a file describes it (docs/submit.md has the keys): what runs, on how many nodes, with
// which limits, and what its scheduler needs. Pure, but for from_file().
#pragma once

#include <chrono>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ctl/configured_endpoint.h"

namespace ddprun::submit {

// [limits]: of one worker, except `time`, which is the job's. Empty: no limit.
struct Limits {
  std::string memory;  // "8G"
  std::string pids;    // "512"
  std::string cpuset;  // "0-3,8"
  std::string io;      // as --worker-io has it
  std::optional<std::chrono::seconds> time;
};

// [restarts]. Unset: ddprun's default.
struct Restarts {
  std::map<std::string, std::optional<int>> flags;  // of ddprun: "max-restarts", …
  int requeues = 20;  // how often the scheduler runs a job again that ended with 75
};

// [preflight]: runs before a node joins.
struct Preflight {
  std::string command;                          // for /bin/sh; empty: none
  std::string doctor;                           // "off", "fail", "warn"; empty: not said
  std::optional<std::chrono::seconds> timeout;  // unset: ddprun's default
};

struct SlurmKeys {  // [to.slurm]
  std::string partition, account, qos, constraint, reservation, nodelist, exclude, memory;
  std::optional<int> cpus_per_node, gpus_per_node;
  bool exclusive = false;
  std::chrono::seconds notice{120};  // the job is told so long before its time limit; 0: never
  std::vector<std::string> options;  // further options of sbatch, unchanged: "--comment=nightly"
  std::string setup;                 // lines of the batch script before the job: "module load cuda"
};

struct KubernetesKeys {      // [to.kubernetes]
  std::string kind = "job";  // "job" or "jobset"
  std::string image;         // required
  std::string image_pull_policy, service_account, priority_class, queue, context;
  std::string kube_namespace;         // `namespace`
  std::string cpus, memory;           // of a pod, in Kubernetes' notation
  std::string shared_memory = "1Gi";  // of its /dev/shm, in the same notation
  std::optional<int> gpus_per_node;
  std::string gpu_resource = "nvidia.com/gpu";
  std::map<std::string, std::string> node_selector, labels, volumes;  // volumes: claim → path
  std::vector<std::string> secrets;  // each one's keys become variables
  std::vector<std::string> image_pull_secrets;
  std::chrono::seconds keep_finished{86'400};  // ttlSecondsAfterFinished
};

struct SshKeys {                 // [to.ssh]
  std::string hosts;             // "n[01-04]:8,gpu9"
  std::string hostfile;          // a hosts file's path, in place of `hosts`
  std::string include, exclude;  // taken from these, or left out
  std::string ssh;               // a command line; empty: ssh
};

struct NodesKeys {                    // [to.nodes]
  ctl::ConfiguredEndpoint queue;      // as ddprun's flags of these names
  std::optional<int> slots_per_node;  // unset: one for each worker
};

// The longest argument, or NAME=VALUE, that Linux accepts for a program (execve(2): MAX_ARG_STRLEN
// without its final zero).
inline constexpr std::size_t kMaxArgumentBytes = 128 * 1024 - 1;

struct JobFile {
  std::string path;  // for messages: one line
  std::string base;  // relative paths begin here: the directory of `submit`
  std::string name;
  std::vector<std::string> command;  // PROGRAM and its arguments
  int min_nodes = 0, max_nodes = 0;  // 0: not said
  int spares = 0;
  std::string workers_per_node;    // "4", "auto", "gpu", "cpu"; empty: not said
  std::string directory;           // where it runs; absolute; empty: not said
  std::string log_dir;             // where its output goes; absolute; empty: not said
  std::string ddprun;              // its path on the nodes; empty: see docs/submit.md
  std::vector<std::string> flags;  // further flags of ddprun, unchanged: "--hang-timeout=10m"
  std::map<std::string, std::string> environment;
  std::vector<std::string> environment_without;  // variables of `submit` that the job doesn't get
  Limits limits;
  Restarts restarts;
  Preflight preflight;
  SlurmKeys slurm;
  KubernetesKeys kubernetes;
  SshKeys ssh;
  NodesKeys nodes;

  std::vector<std::string> places;  // tables of [to] that the file has: "slurm"

  // The directories of the job and of its output, if the nodes have the same paths as this machine.
  std::string work_directory() const { return directory.empty() ? base : directory; }
  std::string output_directory() const { return log_dir.empty() ? work_directory() : log_dir; }

  // Parses a job file. Relative paths begin at `base`, an absolute directory. Throws
  // Error(kInvalidArgument) with a line "path:line: what" for each error.
  static JobFile parse(std::string_view text, const std::string& path, const std::string& base);
  // As parse(), with the current directory as `base`. Throws also if the file can't be read.
  static JobFile from_file(const std::string& path);
};

// Returns all keys, as "to.slurm.partition", in the order of docs/submit.md. A name with "." at its
// end is a table whose keys the user chooses. Pure.
std::vector<std::string> job_key_names();

}  // namespace ddprun::submit
