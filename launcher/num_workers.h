// SPDX-License-Identifier: Apache-2.0
// Computes from --nproc-per-node how many workers this node starts, and how many GPUs it sees.
#pragma once

#include <sched.h>

#include <cstddef>
#include <functional>
#include <optional>
#include <string>

namespace ddprun::launcher {

// The machine's resources. An interface, so that tests can replace it.
class Machine {
 public:
  virtual ~Machine() = default;
  virtual int num_cpus() const = 0;  // those that this process may run on
  // How many CPUs its cgroup lets it use at a time: 1.5. nullopt: all.
  virtual std::optional<double> cpu_quota() const = 0;
  // Counts installed and reachable GPUs, and may start the driver. Throws Error(kTimeout) if it
  // doesn't answer.
  virtual int num_gpus() const = 0;
  virtual int num_listed_gpus() const = 0;  // as the loaded driver lists them, at no cost
};

const Machine& real_machine();

// As sched_getaffinity(2): fills `size` bytes of `mask`. Returns −1 with errno EINVAL if the
// kernel's mask is longer. Tests can replace it.
using GetAffinity = std::function<int(std::size_t size, cpu_set_t* mask)>;

// Counts the CPUs that this process may run on, however many the kernel knows. Returns 1 if it
// can't be found out.
int count_cpus(const GetAffinity& get_affinity);

// Returns how many of `installed` GPUs CUDA_VISIBLE_DEVICES (nullopt: unset) leaves visible, as
// agent::named_gpus() reads it. Pure.
int num_visible_gpus(int installed, const std::optional<std::string>& cuda_visible_devices);

// Returns what is wrong with a value of --nproc-per-node on any machine; empty: nothing.
std::string check_num_workers(const std::string& nproc_per_node);

struct NumWorkers {
  int count = 0;
  std::string problem;    // what is wrong with the value; empty: nothing
  std::string note = {};  // why there are fewer than expected; empty: there aren't
};

// Returns the number that a flag's value means (--nproc-per-node, --slots): a number from 1 on, or
// a word. "cpu": one per CPU, but at most its cgroup's quota, rounded up. "gpu": one per visible
// GPU, and a problem if there is none. "auto": one per visible GPU, or per CPU if there is none.
// Asks for GPUs only if needed.
NumWorkers num_workers(const std::string& nproc_per_node, const Machine& machine,
                       const std::optional<std::string>& cuda_visible_devices);

// Says that workers will share GPUs; empty: they won't, or there is none.
std::string gpu_note(int num_workers, const Machine& machine,
                     const std::optional<std::string>& cuda_visible_devices);

}  // namespace ddprun::launcher
