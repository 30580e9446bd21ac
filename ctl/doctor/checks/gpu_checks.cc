// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>

#include "common/log.h"
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
    outcome.verdict = Verdict::kFail;
    outcome.fix = "dmesg | grep -i -e nvrm -e xid says why the driver left one out";
  } else if (!has_control || num_nodes == 0) {
    outcome.verdict = Verdict::kWarn;
    outcome.fix = "nvidia-modprobe -u -c=0; in a container --gpus=all";
  }
  return outcome;
}

// What is the program's fault, as NVIDIA's table has it; and what means that a GPU must be reset,
// drained or replaced.
bool is_programs_fault(int xid) {
  constexpr std::array kOwn = {13, 31, 43, 45, 68};
  return std::find(kOwn.begin(), kOwn.end(), xid) != kOwn.end();
}
bool is_hardware(int xid) {
  constexpr std::array kBad = {46, 48, 62, 64, 74, 79, 95, 109, 119, 120, 140, 143, 155, 156, 158};
  return std::find(kBad.begin(), kBad.end(), xid) != kBad.end();
}

struct XidCounts {
  std::map<int, int> by_number;
  std::string device;  // of the last one
};

// "6,1234,98765432,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=…": microseconds since the start.
XidCounts count_xids(const std::string& log, double since_seconds) {
  XidCounts counts;
  for (const std::string& line : lines_in(log)) {
    const std::size_t at = line.find("NVRM: Xid (");
    const std::size_t end = at == std::string::npos ? at : line.find("): ", at);
    if (end == std::string::npos) continue;
    std::string fields = line.substr(0, line.find(';'));
    std::replace(fields.begin(), fields.end(), ',', ' ');
    const auto numbers = numbers_in(fields);
    if (numbers.size() < 3 || static_cast<double>(numbers[2]) / 1e6 < since_seconds) continue;
    ++counts.by_number[std::atoi(line.c_str() + end + 3)];
    counts.device =
        line.substr(at + sizeof "NVRM: Xid (" - 1, end - at - (sizeof "NVRM: Xid (" - 1));
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
    const Verdict verdict = is_hardware(xid)         ? Verdict::kFail
                            : is_programs_fault(xid) ? Verdict::kOk
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
  outcome.verdict = Verdict::kWarn;
  outcome.seen = facts.gpu_memory.answer->holders;
  outcome.fix = "ps -p PID tells whose it is; a job's leftovers: kill PID";
  return outcome;
}

}  // namespace

std::vector<Check> gpu_checks() {
  static constexpr char kGroup[] = "gpu";
  return {
      {"gpu_driver", kGroup, "/proc/driver/nvidia/version, /sys/bus/pci",
       "without it no program sees a GPU", judge_gpu_driver},
      {"gpu_devices", kGroup, "/sys/bus/pci, /proc/driver/nvidia/gpus, /dev/nvidia*",
       "a GPU that the driver left out, or without a device file, is no worker's",
       judge_gpu_devices},
      {"gpu_xid", kGroup, "/dev/kmsg, lines of NVRM: Xid",
       "a GPU that has reported such an error fails the next job, too", judge_gpu_xid},
      {"gpu_memory", kGroup, "NVML, in a process of its own (ddprun-gpus)",
       "what others hold is missing to this job", judge_gpu_memory},
  };
}

}  // namespace ddprun::doctor
