// SPDX-License-Identifier: Apache-2.0
// What NVML says of the GPUs' state.
#include <algorithm>
#include <cstdlib>
#include <functional>
#include <set>
#include <utility>

#include "common/log.h"
#include "ctl/doctor/checks.h"
#include "ctl/doctor/judge.h"

namespace ddprun::doctor {
namespace {

// "GPU 1: …", for each GPU of which `describe` has something to say of what it read for `key`.
std::vector<std::string> gpus_with(
    const Facts& facts, const char* key,
    const std::function<std::string(const agent::GpuReading&)>& describe) {
  std::vector<std::string> found;
  for (const agent::GpuReading& each : facts.gpu_state.answer->readings) {
    if (each.key != key || each.device < 0) continue;
    const std::string text = describe(each);
    if (!text.empty()) found.push_back(concat("GPU ", each.device, ": ", text));
  }
  return found;
}

std::size_t num_gpus_with(const Facts& facts, const char* key) {
  return gpus_with(facts, key, [](const agent::GpuReading&) { return "known"; }).size();
}

std::optional<long long> reading_of(const Facts& facts, int device, const char* key) {
  for (const agent::GpuReading& each : facts.gpu_state.answer->readings) {
    if (each.device == device && each.key == key) return each.value;
  }
  return std::nullopt;
}

// Why nothing can be judged of `key`; kOk: something can.
Outcome state_known(const Facts& facts, const char* key) {
  if (!facts.gpu_state.answer) return no_answer(facts.gpu_state, "the NVIDIA driver");
  if (!facts.gpu_state.answer->is_known) return skipped("NVML can't be used here");
  if (num_gpus_with(facts, key) == 0) return skipped("these GPUs, or their driver, don't tell it");
  return ok("");
}

// What is `fine`; with a line for each GPU that isn't: `verdict`, and what is to be done.
Outcome unless_found(Outcome fine, const std::vector<std::string>& lines, Verdict verdict,
                     const char* fix) {
  if (lines.empty()) return fine;
  return {verdict, list_text(lines, 8), std::move(fine.wanted), fix};
}

// A GPU that fell off the bus stays in the driver's list; NVML doesn't open it any more.
Outcome judge_count(const Facts& facts, const Thresholds& limits) {
  if (!facts.gpu_state.answer) return no_answer(facts.gpu_state, "the NVIDIA driver");
  std::set<int> devices;
  for (const agent::GpuReading& each : facts.gpu_state.answer->readings) {
    if (each.device >= 0) devices.insert(each.device);
  }
  const double least = limits.at("gpu_count.least");
  const bool is_known = facts.gpu_state.answer->is_known;
  if (least == 0 && !is_known) return skipped("NVML can't be used here");
  if (least == 0 && devices.empty()) return skipped("no GPU answers NVML");
  const auto count = static_cast<double>(devices.size());
  Outcome outcome =
      ok(is_known ? concat(devices.size(), count == 1 ? " answers NVML" : " answer NVML")
                  : "none: NVML can't be used here",
         least == 0 ? "any number: gpu_count.least isn't set" : concat("at least ", least));
  if (count >= least) return outcome;
  outcome.verdict = Verdict::kFail;
  outcome.fix =
      "nvidia-smi -L; dmesg | grep -i -e nvrm -e xid; lspci | grep -i nvidia; in a container "
      "--gpus=all";
  return outcome;
}

Outcome judge_compute_mode(const Facts& facts, const Thresholds&) {
  constexpr long long kProhibited = 2;
  const Outcome known = state_known(facts, agent::kGpuComputeMode);
  if (known.verdict != Verdict::kOk) return known;
  bool is_closed = false;
  const auto odd = gpus_with(facts, agent::kGpuComputeMode, [&](const agent::GpuReading& each) {
    if (each.value == 0) return std::string();
    is_closed = is_closed || each.value == kProhibited;
    return std::string(each.value == kProhibited ? "prohibited" : "exclusive");
  });
  return unless_found(ok("default", "default: several processes may use a GPU"), odd,
                      is_closed ? Verdict::kFail : Verdict::kWarn,
                      "nvidia-smi -i DEVICE -c DEFAULT");
}

Outcome judge_persistence(const Facts& facts, const Thresholds&) {
  const Outcome known = state_known(facts, agent::kGpuPersistence);
  if (known.verdict != Verdict::kOk) return known;
  const auto off = gpus_with(facts, agent::kGpuPersistence, [](const agent::GpuReading& each) {
    return std::string(each.value == 0 ? "off" : "");
  });
  return unless_found(ok("on", "on"), off, Verdict::kWarn,
                      "systemctl enable --now nvidia-persistenced, or nvidia-smi -pm 1");
}

Outcome judge_ecc(const Facts& facts, const Thresholds& limits) {
  const Outcome known = state_known(facts, agent::kGpuEccUncorrected);
  if (known.verdict != Verdict::kOk) return known;
  const double most = limits.at("gpu_ecc.warn");
  const auto bad = gpus_with(facts, agent::kGpuEccUncorrected, [](const agent::GpuReading& each) {
    return each.value == 0 ? std::string() : concat(each.value, " not corrected");
  });
  const auto many = gpus_with(facts, agent::kGpuEccCorrected, [&](const agent::GpuReading& each) {
    const bool is_many = static_cast<double>(each.value) > most;
    return is_many ? concat(each.value, " corrected") : std::string();
  });
  return unless_found(
      ok("none that could not be corrected", concat("none that could not be corrected, at most ",
                                                    static_cast<long long>(most), " that were")),
      bad.empty() ? many : bad, bad.empty() ? Verdict::kWarn : Verdict::kFail,
      "take the node out; nvidia-smi -q -d ECC, then nvidia-smi --gpu-reset; if they come again: "
      "replace the GPU");
}

Outcome judge_row_remap(const Facts& facts, const Thresholds&) {
  const Outcome known = state_known(facts, agent::kGpuRemapPending);
  if (known.verdict != Verdict::kOk) return known;
  auto bad = gpus_with(facts, agent::kGpuRemapFailed, [](const agent::GpuReading& each) {
    return std::string(each.value == 0 ? "" : "no spare row was left");
  });
  const auto waits = gpus_with(facts, agent::kGpuRemapPending, [](const agent::GpuReading& each) {
    return std::string(each.value == 0 ? "" : "rows wait for a reset");
  });
  bad.insert(bad.end(), waits.begin(), waits.end());
  return unless_found(
      ok("none waits, none has failed", "none waits, none has failed"), bad, Verdict::kFail,
      "nvidia-smi --gpu-reset -i DEVICE, with no job on it; no spare row: replace the GPU");
}

Outcome judge_throttle(const Facts& facts, const Thresholds&) {
  const Outcome known = state_known(facts, agent::kGpuSlowdown);
  if (known.verdict != Verdict::kOk) return known;
  const auto slow = gpus_with(facts, agent::kGpuSlowdown, [](const agent::GpuReading& each) {
    std::string why;
    const auto add = [&](long long bit, const char* text) {
      if ((each.value & bit) != 0) why += (why.empty() ? "" : " and ") + std::string(text);
    };
    add(agent::kSlowdownByHeat | agent::kSlowdownBySoftwareHeat, "heat");
    add(agent::kSlowdownByPowerBrake, "a power brake");
    if (why.empty()) add(agent::kSlowdownOfHardware, "hardware");
    return why.empty() ? why : "slowed down by " + why;
  });
  return unless_found(
      ok("none is slowed down", "no GPU is slowed down by heat, a power brake or hardware"), slow,
      Verdict::kWarn, "nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER; fans, air, power supplies");
}

// A GPU all of whose links are down may have no bridge; one that has some, or less than its peers,
// has lost them.
Outcome judge_nvlink(const Facts& facts, const Thresholds&) {
  const Outcome known = state_known(facts, agent::kGpuLinksActive);
  if (known.verdict != Verdict::kOk) return known;
  long long most = 0;
  for (const agent::GpuReading& each : facts.gpu_state.answer->readings) {
    if (each.key == agent::kGpuLinksActive) most = std::max(most, each.value);
  }
  if (most == 0) return skipped("no NVLink is in use here");
  const auto bad = gpus_with(facts, agent::kGpuLinksActive, [&](const agent::GpuReading& each) {
    const auto inactive = reading_of(facts, each.device, agent::kGpuLinksInactive).value_or(0);
    if (each.value == most && inactive == 0) return std::string();
    return concat(each.value, " active, ", inactive, " inactive");
  });
  return unless_found(
      ok(concat(most, " active on each GPU"), "all links active, as many on each GPU"), bad,
      Verdict::kFail,
      "nvidia-smi nvlink -s; systemctl status nvidia-fabricmanager; dmesg | grep -i nvlink");
}

// "12.8" → 12; 0: none.
int major_of(const std::string& version) { return std::atoi(version.c_str()); }

// What the driver runs: what NVML says, else by its own version, as NVIDIA's table has it.
int cuda_of_driver(const Facts& facts) {
  if (facts.gpu_state.answer) {
    if (const auto version = reading_of(facts, -1, agent::kGpuCudaVersion)) {
      return static_cast<int>(*version / 1000);
    }
  }
  const int driver = major_of(driver_version(facts.files));
  return driver >= 580 ? 13 : driver >= 525 ? 12 : driver >= 450 ? 11 : 0;
}

Outcome judge_cuda(const Facts& facts, const Thresholds&) {
  const std::string driver = driver_version(facts.files);
  if (driver.empty()) return skipped("no NVIDIA driver is loaded");
  const WorkerPackages& packages = facts.packages;
  if (packages.cuda.empty()) return skipped("no PyTorch with CUDA was found where workers look");
  const int most = cuda_of_driver(facts);
  const std::string nccl =
      packages.nccl.empty() ? "" : ", NCCL " + packages.nccl + " for CUDA " + packages.nccl_cuda;
  Outcome outcome = ok(concat("PyTorch ", one_line(packages.torch), " for CUDA ", packages.cuda,
                              nccl, "; driver ", driver, " runs CUDA ", most),
                       "a driver that runs the worker's CUDA, and an NCCL for that");
  const int wanted = major_of(packages.cuda);
  if (most > 0 && wanted > most) {
    outcome.verdict = Verdict::kFail;
    outcome.fix = concat("a driver that runs CUDA ", wanted,
                         " (12: 525 or later, 13: 580 or later), or a PyTorch for CUDA ", most);
  } else if (!packages.nccl_cuda.empty() && major_of(packages.nccl_cuda) != wanted) {
    outcome.verdict = Verdict::kWarn;
    outcome.fix = concat("pip install nvidia-nccl-cu", wanted, ", in ", one_line(packages.folder));
  }
  return outcome;
}

}  // namespace

std::vector<Check> gpu_state_checks() {
  static constexpr char kGroup[] = "gpu";
  return {
      {"gpu_cuda", kGroup, "names in site-packages, the driver's CUDA version",
       "a worker whose CUDA is newer than the driver's sees no GPU", judge_cuda},
      {"gpu_count", kGroup, "NVML: GPUs that answer",
       "a node with fewer GPUs than the others has no place for all of its workers", judge_count},
      {"gpu_compute_mode", kGroup, "NVML", "a second process on an exclusive GPU fails",
       judge_compute_mode},
      {"gpu_persistence", kGroup, "NVML",
       "without it the driver forgets a GPU that nobody uses, and each start takes seconds",
       judge_persistence},
      {"gpu_ecc", kGroup, "NVML: volatile ECC errors",
       "an error that can't be corrected ends the job that meets it", judge_ecc},
      {"gpu_row_remap", kGroup, "NVML: remapped rows",
       "bad memory stays in use until the GPU is reset", judge_row_remap},
      {"gpu_throttle", kGroup, "NVML: clocks' event reasons",
       "all ranks wait for the GPU that is slowed down", judge_throttle},
      {"gpu_nvlink", kGroup, "NVML: state of each link",
       "a GPU with fewer links than its peers slows down or breaks collectives", judge_nvlink},
  };
}

}  // namespace ddprun::doctor
