// SPDX-License-Identifier: Apache-2.0
#include "launcher/num_workers.h"

#include "launcher/options/option_values.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <memory>
#include <utility>

#include "agent/binding/binding_plan.h"
#include "agent/gpu/gpu_helper.h"
#include "agent/preflight/node_checks.h"
#include "common/cgroup_limits.h"
#include "common/error.h"
#include "common/process_facts.h"
#include "common/text.h"

namespace ddprun::launcher {
namespace {

constexpr int kMostWorkers = 65536;

constexpr std::chrono::seconds kGpuLimit{30};  // the driver may have to start: seconds for each GPU

class RealMachine : public Machine {
 public:
  int num_cpus() const override {
    return count_cpus(
        [](std::size_t size, cpu_set_t* mask) { return ::sched_getaffinity(0, size, mask); });
  }
  std::optional<double> cpu_quota() const override { return ddprun::cpu_quota(); }
  int num_gpus() const override {
    const auto counted =
        agent::count_gpus(helper_program("ddprun-gpus"), Deadline::after(kGpuLimit));
    return counted ? *counted : agent::num_listed_gpus();
  }
  int num_listed_gpus() const override { return agent::num_listed_gpus(); }
};

NumWorkers one_per_cpu(const Machine& machine) {
  const int cpus = machine.num_cpus();
  const auto quota = machine.cpu_quota();
  if (!quota || *quota >= cpus) return {.count = cpus, .problem = ""};
  const int count = cpus_of_quota(cpus, quota);
  return {.count = count,
          .problem = "",
          .note = concat(count, count == 1 ? " worker: " : " workers: ",
                         "the CPU quota of its cgroup is ", *quota, " of ", cpus, " CPUs")};
}

// Says why no worker sees any of `installed` GPUs, and what to do.
std::string hidden_gpus(int installed, const std::string& cuda_visible_devices) {
  const std::string setting = "CUDA_VISIBLE_DEVICES=\"" + cuda_visible_devices + "\"";
  const std::string range = installed == 1 ? "0" : "0 to " + std::to_string(installed - 1);
  if (trimmed(cuda_visible_devices).empty()) {
    return setting + " hides all " + std::to_string(installed) + " GPU(s) of this node; unset it";
  }
  return setting + " names none of this node's " + std::to_string(installed) + " GPU(s) (" + range +
         ", each once); correct or unset it";
}

}  // namespace

const Machine& real_machine() {
  static const RealMachine instance;
  return instance;
}

int count_cpus(const GetAffinity& get_affinity) {
  constexpr std::size_t kMostCpus = std::size_t{1} << 20;
  for (std::size_t num_cpus = CPU_SETSIZE; num_cpus <= kMostCpus; num_cpus *= 2) {
    const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> mask(
        CPU_ALLOC(num_cpus), [](cpu_set_t* set) { CPU_FREE(set); });
    if (!mask) break;
    const std::size_t size = CPU_ALLOC_SIZE(num_cpus);
    CPU_ZERO_S(size, mask.get());
    if (get_affinity(size, mask.get()) == 0) return std::max(1, CPU_COUNT_S(size, mask.get()));
    if (errno != EINVAL) break;
  }
  return 1;
}

int num_visible_gpus(int installed, const std::optional<std::string>& cuda_visible_devices) {
  if (!cuda_visible_devices) return installed;
  return static_cast<int>(agent::named_gpus(installed, *cuda_visible_devices).size());
}

std::string check_num_workers(const std::string& nproc_per_node) {
  if (nproc_per_node == "auto" || nproc_per_node == "gpu" || nproc_per_node == "cpu") return {};
  if (parse_number(nproc_per_node, kMostWorkers).value_or(0) > 0) return {};
  return "wants a number from 1 to " + std::to_string(kMostWorkers) + ", auto, gpu or cpu";
}

NumWorkers num_workers(const std::string& nproc_per_node, const Machine& machine,
                       const std::optional<std::string>& cuda_visible_devices) {
  if (nproc_per_node == "cpu") return one_per_cpu(machine);
  if (nproc_per_node == "gpu" || nproc_per_node == "auto") {
    int installed = 0;
    try {
      installed = machine.num_gpus();
    } catch (const Error& error) {
      return {.count = 0,
              .problem = concat(error.what(),
                                " (does nvidia-smi hang, too?): leave this node out, or give a "
                                "number of workers, or cpu")};
    }
    const int visible = num_visible_gpus(installed, cuda_visible_devices);
    if (visible > 0) return {.count = visible, .problem = ""};
    if (nproc_per_node == "auto") return one_per_cpu(machine);
    if (installed == 0) {
      return {.count = 0,
              .problem =
                  "this node has no NVIDIA GPU (no driver, or no device): give a number of "
                  "workers, or cpu"};
    }
    return {.count = 0,
            .problem = hidden_gpus(installed, *cuda_visible_devices) +
                       ", or give a number of workers, or cpu"};
  }
  std::string problem = check_num_workers(nproc_per_node);
  if (!problem.empty()) return {.count = 0, .problem = std::move(problem)};
  return {.count = parse_number(nproc_per_node, kMostWorkers).value_or(1), .problem = ""};
}

std::string gpu_note(int num_workers, const Machine& machine,
                     const std::optional<std::string>& cuda_visible_devices) {
  const int visible = num_visible_gpus(machine.num_listed_gpus(), cuda_visible_devices);
  if (visible == 0 || num_workers <= visible) return "";
  return std::to_string(num_workers) + " workers share " + std::to_string(visible) +
         " GPU(s); --nproc-per-node=gpu starts one worker on each";
}

}  // namespace ddprun::launcher
