// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cstdlib>
#include <functional>
#include <map>
#include <set>
#include <utility>

#include "agent/gpu/gpu_error.h"
#include "common/text.h"
#include "ctl/doctor/checks.h"
#include "ctl/doctor/judge.h"

namespace ddprun::doctor {
namespace {

constexpr char kDriverVersion[] = "/proc/driver/nvidia/version";
constexpr char kNoGpu[] = "no NVIDIA GPU here";

Outcome judge_gpu_driver(const Facts& facts, const Thresholds&) {
  const std::size_t num_gpus = nvidia_gpus(facts.files).size();
  const auto version = facts.files.text(kDriverVersion);
  if (!version && num_gpus == 0) return skipped(kNoGpu);
  if (version) return ok(driver_version(facts.files), "loaded");
  return {Verdict::kFail,
          concat(num_gpus, num_gpus == 1 ? " NVIDIA GPU is" : " NVIDIA GPUs are",
                 " on the PCI bus, and no driver is loaded"),
          "loaded", "modprobe nvidia; dmesg | grep -i nvrm says why it isn't"};
}

Outcome judge_gpu_devices(const Facts& facts, const Thresholds&) {
  if (!facts.files.text(kDriverVersion)) return skipped("no NVIDIA driver is loaded");
  const std::size_t on_bus = nvidia_gpus(facts.files).size();
  const std::size_t listed = facts.files.names_in("/proc/driver/nvidia/gpus").size();
  std::size_t num_nodes = 0;
  bool has_control = false;
  for (const std::string& name : facts.files.names_in("/dev")) {
    has_control = has_control || name == "nvidiactl";
    const std::string rest = name.substr(std::min(name.size(), sizeof "nvidia" - 1));
    num_nodes += !rest.empty() && rest.find_first_not_of("0123456789") == std::string::npos;
  }
  Outcome outcome = ok(concat(on_bus, " on the PCI bus, ", listed, " listed by the driver, ",
                              num_nodes, " device files"),
                       "as many listed as on the bus; a device file of each");
  if (listed < on_bus) {
    return failed(outcome, "dmesg | grep -i -e nvrm -e xid says why the driver left one out");
  }
  const bool is_well = has_control && num_nodes > 0;
  return is_well ? outcome : warned(outcome, "nvidia-modprobe -u -c=0; in a container --gpus=all");
}

struct XidCounts {
  std::map<int, int> by_number;
  std::string device;  // the last error's
};

XidCounts count_xids(const std::string& log, double since_seconds) {
  XidCounts counts;
  for (const std::string& record : lines_in(log)) {
    const auto error = agent::parse_gpu_error(record);
    if (!error || static_cast<double>(error->at_us) / 1e6 < since_seconds) continue;
    ++counts.by_number[error->xid];
    counts.device = error->device;
  }
  return counts;
}

Outcome judge_gpu_xid(const Facts& facts, const Thresholds& limits) {
  if (!facts.files.text(kDriverVersion)) return skipped("no NVIDIA driver is loaded");
  if (!facts.kernel_log) {
    return skipped("this user may not read /dev/kmsg (root may; sysctl kernel.dmesg_restrict=0)");
  }
  const double uptime =
      std::strtod(facts.files.text("/proc/uptime").value_or("0").c_str(), nullptr);
  const double window = limits.at("gpu_xid.window");
  const XidCounts counts = count_xids(*facts.kernel_log, uptime - window);
  Outcome outcome = ok(concat("none in the last ", window, " s"), "none");
  if (counts.by_number.empty()) return outcome;
  std::vector<std::string> parts;
  for (const auto& [xid, count] : counts.by_number) {
    parts.push_back(concat(xid, count > 1 ? concat(" (", count, " times)") : ""));
    const agent::GpuFault fault = agent::fault_of(xid);
    const Verdict verdict = fault == agent::GpuFault::kHardware  ? Verdict::kFail
                            : fault == agent::GpuFault::kProgram ? Verdict::kOk
                                                                 : Verdict::kWarn;
    outcome.verdict = std::max(outcome.verdict, verdict);
  }
  outcome.seen = "Xid " + list_text(parts) + ", the last one of " + one_line(counts.device);
  if (outcome.verdict == Verdict::kOk) outcome.seen += ": programs' own faults";
  if (outcome.verdict == Verdict::kFail) {
    outcome.fix =
        "take the node out; nvidia-smi -q -i DEVICE, then nvidia-smi --gpu-reset or a "
        "restart of the machine";
  } else if (outcome.verdict == Verdict::kWarn) {
    outcome.fix = "dmesg | grep -i xid; NVIDIA's table of Xid errors says what each means";
  }
  return outcome;
}

Outcome judge_gpu_memory(const Facts& facts, const Thresholds& limits) {
  if (!facts.gpu_memory.answer) return no_answer(facts.gpu_memory, "the NVIDIA driver");
  if (!facts.gpu_memory.answer->is_known) return skipped("NVML can't be used here");
  Outcome outcome =
      ok("no process holds any", "none of more than " + size_text(limits.at("gpu_memory.warn")));
  if (facts.gpu_memory.answer->holders.empty()) return outcome;
  outcome.seen = facts.gpu_memory.answer->holders;
  return warned(outcome, "ps -p PID tells whose it is; a job's leftovers: kill PID");
}

// Returns "GPU 1: …" for each GPU where `describe` has a text for the reading of `key`.
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

// Returns why nothing is known of `key`; nullopt: something is.
std::optional<Outcome> why_unknown(const Facts& facts, const char* key) {
  if (!facts.gpu_state.answer) return no_answer(facts.gpu_state, "the NVIDIA driver");
  if (!facts.gpu_state.answer->is_known) return skipped("NVML can't be used here");
  if (num_gpus_with(facts, key) == 0) return skipped("these GPUs, or their driver, don't tell it");
  return std::nullopt;
}

// Returns `fine` if `lines` is empty. Else returns `verdict` with the lines, one for each bad GPU,
// and `fix`.
Outcome unless_found(Outcome fine, const std::vector<std::string>& lines, Verdict verdict,
                     const char* fix) {
  if (lines.empty()) return fine;
  return {verdict, list_text(lines, 8), std::move(fine.wanted), fix};
}

// Finds GPUs that NVML can't open: a GPU that fell off the bus stays in the driver's list.
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
  return failed(
      outcome,
      "nvidia-smi -L; dmesg | grep -i -e nvrm -e xid; lspci | grep -i nvidia; in a container "
      "--gpus=all");
}

Outcome judge_compute_mode(const Facts& facts, const Thresholds&) {
  constexpr long long kProhibited = 2;
  if (const auto why = why_unknown(facts, agent::kGpuComputeMode)) return *why;
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
  if (const auto why = why_unknown(facts, agent::kGpuPersistence)) return *why;
  const auto off = gpus_with(facts, agent::kGpuPersistence, [](const agent::GpuReading& each) {
    return std::string(each.value == 0 ? "off" : "");
  });
  return unless_found(ok("on", "on"), off, Verdict::kWarn,
                      "systemctl enable --now nvidia-persistenced, or nvidia-smi -pm 1");
}

Outcome judge_ecc(const Facts& facts, const Thresholds& limits) {
  if (const auto why = why_unknown(facts, agent::kGpuEccUncorrected)) return *why;
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
  if (const auto why = why_unknown(facts, agent::kGpuRemapPending)) return *why;
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
  if (const auto why = why_unknown(facts, agent::kGpuSlowdown)) return *why;
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

// If no GPU has active links, there may be no bridge. A GPU with inactive links, or with fewer than
// others, has lost some.
Outcome judge_nvlink(const Facts& facts, const Thresholds&) {
  if (const auto why = why_unknown(facts, agent::kGpuLinksActive)) return *why;
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

// "12.8" → 12; 0: the text has no number.
int major_of(const std::string& version) { return std::atoi(version.c_str()); }

// Returns the CUDA version that the driver supports, from NVML, else from NVIDIA's table of
// drivers.
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
    return failed(outcome,
                  concat("a driver that runs CUDA ", wanted,
                         " (12: 525 or later, 13: 580 or later), or a PyTorch for CUDA ", most));
  }
  if (packages.nccl_cuda.empty() || major_of(packages.nccl_cuda) == wanted) return outcome;
  return warned(outcome,
                concat("pip install nvidia-nccl-cu", wanted, ", in ", one_line(packages.folder)));
}

}  // namespace

std::vector<Check> gpu_checks() {
  return {
      {"gpu_driver", "gpu", "/proc/driver/nvidia/version, /sys/bus/pci",
       "without it no program sees a GPU", judge_gpu_driver},
      {"gpu_devices", "gpu", "/sys/bus/pci, /proc/driver/nvidia/gpus, /dev/nvidia*",
       "a GPU that the driver left out, or without a device file, is no worker's",
       judge_gpu_devices},
      {"gpu_xid", "gpu", "/dev/kmsg, lines of NVRM: Xid",
       "a GPU that has reported such an error fails the next job, too", judge_gpu_xid},
      {"gpu_memory", "gpu", "NVML, in a process of its own (ddprun-gpus)",
       "what others hold is missing to this job", judge_gpu_memory},
  };
}

std::vector<Check> gpu_state_checks() {
  return {
      {"gpu_cuda", "gpu", "names in site-packages, the driver's CUDA version",
       "a worker whose CUDA is newer than the driver's sees no GPU", judge_cuda},
      {"gpu_count", "gpu", "NVML: GPUs that answer",
       "a node with fewer GPUs than the others has no place for all of its workers", judge_count},
      {"gpu_compute_mode", "gpu", "NVML", "a second process on an exclusive GPU fails",
       judge_compute_mode},
      {"gpu_persistence", "gpu", "NVML",
       "without it the driver forgets a GPU that nobody uses, and each start takes seconds",
       judge_persistence},
      {"gpu_ecc", "gpu", "NVML: volatile ECC errors",
       "an error that can't be corrected ends the job that meets it", judge_ecc},
      {"gpu_row_remap", "gpu", "NVML: remapped rows",
       "bad memory stays in use until the GPU is reset", judge_row_remap},
      {"gpu_throttle", "gpu", "NVML: clocks' event reasons",
       "all ranks wait for the GPU that is slowed down", judge_throttle},
      {"gpu_nvlink", "gpu", "NVML: state of each link",
       "a GPU with fewer links than its peers slows down or breaks collectives", judge_nvlink},
  };
}

}  // namespace ddprun::doctor
