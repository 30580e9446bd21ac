// SPDX-License-Identifier: Apache-2.0
// --nproc-per-node → how many workers this node starts, and how many GPUs it sees.
#pragma once

#include <sched.h>

#include <cstddef>
#include <functional>
#include <optional>
#include <string>

namespace ddprun::launcher {

// The machine's resources; a seam, so that the rules are tested anywhere.
class Machine {
 public:
  virtual ~Machine() = default;
  virtual int num_cpus() const = 0;  // that this process may run on
  // Its cgroup lets it use so many of these at a time: 1.5. nullopt: all.
  virtual std::optional<double> cpu_quota() const = 0;
  // Installed and reachable; may start the driver. Throws Error(kTimeout) where it does not answer.
  virtual int num_gpus() const = 0;
  virtual int num_listed_gpus() const = 0;  // as the loaded driver lists them, at no cost
};

const Machine& real_machine();

// As sched_getaffinity(2): fills `size` bytes of `mask`; −1 with errno EINVAL if the kernel's mask
// is longer. A seam, like Machine.
using GetAffinity = std::function<int(std::size_t size, cpu_set_t* mask)>;

// CPUs that this process may run on, however many the kernel knows; 1 where it doesn't say.
int count_cpus(const GetAffinity& get_affinity);

// How many of `installed` GPUs CUDA_VISIBLE_DEVICES (nullopt: unset) leaves visible. As CUDA reads
// it, these are the entries up to the first invalid one (empty, "-1" or an index beyond the last).
// Blanks round an entry don't count. If an entry stands twice, CUDA sees none. Pure.
int num_visible_gpus(int installed, const std::optional<std::string>& cuda_visible_devices);

// The fault of a value of --nproc-per-node that holds on any machine; empty: none.
std::string check_num_workers(const std::string& nproc_per_node);

struct NumWorkers {
  int count = 0;
  std::string problem;    // not empty: what is wrong with the value
  std::string note = {};  // not empty: why there are fewer than one would expect
};

// The number that a flag's value means (--nproc-per-node, --slots): a number from 1 on, or one of
// these words. "cpu": one per CPU, no more than its cgroup's quota, rounded up. "gpu": one per
// visible GPU, a problem without one. "auto": one per visible GPU, or per CPU if there is none.
// Asks for GPUs only where it must.
NumWorkers num_workers(const std::string& nproc_per_node, const Machine& machine,
                       const std::optional<std::string>& cuda_visible_devices);

// Tells the user that workers will share GPUs; empty: they won't, or there is none.
std::string gpu_note(int num_workers, const Machine& machine,
                     const std::optional<std::string>& cuda_visible_devices);

}  // namespace ddprun::launcher
