// SPDX-License-Identifier: Apache-2.0
#include "agent/isolation/isolation_plan.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <utility>

#include "agent/output/output_options.h"
#include "common/parsed_number.h"
#include "common/text.h"

namespace ddprun::agent {
namespace {

constexpr char kNone[] = "none";
constexpr std::uint64_t kLeastMemory = std::uint64_t{1} << 20;  // no program fits into less
constexpr std::uint64_t kMostPids = 4'194'304;                  // the kernel's limit (PIDS_MAX)
// The kernel's limit: one more means "max".
constexpr std::uint64_t kMostOperations = 4'294'967'294;

struct IoKey {
  const char* name;
  std::optional<std::uint64_t> IoLimit::*field;
  bool is_size;
};
constexpr std::array<IoKey, 4> kIoKeys = {{{"rbps", &IoLimit::read_bytes, true},
                                           {"wbps", &IoLimit::write_bytes, true},
                                           {"riops", &IoLimit::reads, false},
                                           {"wiops", &IoLimit::writes, false}}};

std::string parse_io_value(const IoKey& key, std::string_view text, IoLimit& limit) {
  std::uint64_t value = 0;
  if (key.is_size) {
    if (const std::string why = parse_size(text, value); !why.empty()) {
      return concat(key.name, "=", text, " ", why);
    }
  } else {
    value = parsed_number<std::uint64_t>(text).value_or(0);
    if (value > kMostOperations) value = 0;
  }
  if (value == 0) {
    return concat(key.name, "=", text, " wants a number, more than 0",
                  key.is_size ? "" : " and below 4294967295");
  }
  limit.*key.field = value;
  return {};
}

std::string parse_io_limit(std::string_view text, IoLimit& limit) {
  constexpr char kForm[] = "wants DEVICE:rbps=SIZE,wbps=SIZE,riops=N,wiops=N, or none";
  // A device may contain a colon, a value can't.
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos || colon == 0) return kForm;
  limit.device = text.substr(0, colon);
  std::string_view rest = text.substr(colon + 1);
  if (rest.find('=') == std::string_view::npos) return kForm;
  while (!rest.empty()) {
    std::string_view value = take_until(rest, ",");
    const std::string_view name = take_until(value, "=");
    const auto key = std::find_if(kIoKeys.begin(), kIoKeys.end(),
                                  [&](const IoKey& each) { return name == each.name; });
    if (key == kIoKeys.end()) {
      return concat("\"", name, "\" is none of rbps, wbps, riops and wiops");
    }
    if (limit.*key->field) return concat(name, " is given twice for ", limit.device);
    if (std::string why = parse_io_value(*key, value, limit); !why.empty()) return why;
  }
  return {};
}

constexpr char kCpusetFile[] = "cpuset.cpus", kIoFile[] = "io.max";

bool has(const std::vector<std::string>& words, const std::string& word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

std::string without_end(std::string text) {
  while (text.ends_with('\n') || text.ends_with(' ')) text.pop_back();
  return text;
}

// Returns "" or why the leaves can't have the controller.
std::string lack_of(const std::string& controller, const CgroupPlace& place) {
  if (!place.problem.empty()) return place.problem;
  if (!has(place.controllers, controller)) {
    return concat(
        "the ", controller, " controller is not in ", place.directory, "/cgroup.controllers (",
        place.controllers.empty() ? "none is" : "not delegated, or not with cgroup v2", ")");
  }
  if (!place.crowd.empty() && !has(place.enabled, controller)) {
    return concat("process ", place.crowd, " is in ", place.directory,
                  ", too, and a cgroup with processes can't give on controllers");
  }
  return {};
}

// Returns the number of the whole disk: io.max doesn't take a partition.
std::string disk_number(const CgroupTree& tree, const IoLimit& limit) {
  const bool is_number = limit.device.find_first_not_of("0123456789:") == std::string::npos &&
                         limit.device.find(':') != std::string::npos;
  const std::string number = is_number ? limit.device : tree.device_number(limit.device);
  if (number.empty()) return {};
  const std::string entry = "/sys/dev/block/" + number;
  if (!tree.read(entry + "/dev")) return {};
  if (!tree.read(entry + "/partition")) return number;
  return without_end(tree.read(entry + "/../dev").value_or(""));
}

std::string io_value(const std::string& number, const IoLimit& limit) {
  std::string text = number;
  const auto add = [&text](const char* key, const std::optional<std::uint64_t>& value) {
    text += concat(" ", key, "=", value ? std::to_string(*value) : "max");
  };
  add("rbps", limit.read_bytes);
  add("wbps", limit.write_bytes);
  add("riops", limit.reads);
  add("wiops", limit.writes);
  return text;
}

class IsolationPlanner {
 public:
  IsolationPlanner(const IsolationRequest& request, const CgroupPlace& place,
                   const CgroupTree& tree)
      : request_(request), tree_(tree) {
    plan_.limits = request.limits;
    plan_.place = place;
    plan_.workers.resize(static_cast<std::size_t>(request.num_workers));
  }

  IsolationPlan run() {
    plan_memory();
    plan_pids();
    plan_cpuset();
    plan_io();
    plan_.makes_cgroups = plan_.place.problem.empty();
    // Memory is counted for each worker wherever possible, so that a kill by the kernel's OOM
    // killer is recognised. Without it no worker is charged for what the page cache writes later.
    if (plan_.makes_cgroups && lack_of("memory", plan_.place).empty()) need("memory");
    return std::move(plan_);
  }

 private:
  void need(const std::string& controller) {
    if (!has(plan_.controllers, controller)) plan_.controllers.push_back(controller);
  }

  // Plans a limit for the leaves. False: cgroups don't enforce it, and that is noted.
  bool take(const char* option, const char* controller) {
    const std::string why = lack_of(controller, plan_.place);
    if (why.empty()) {
      need(controller);
      return true;
    }
    plan_.unenforced.push_back({option, why});
    return false;
  }

  void set_all(const CgroupSetting& setting) {
    for (auto& worker : plan_.workers) worker.push_back(setting);
  }

  void plan_memory() {
    if (!request_.limits.memory_bytes || !take("worker-memory", "memory")) return;
    const std::uint64_t bytes = *request_.limits.memory_bytes;
    set_all({"memory.max", std::to_string(bytes - bytes % request_.page_bytes)});
    // The file is missing where the kernel counts no swap.
    set_all({"memory.swap.max", "0", "", true});
    set_all({"memory.oom.group", "1"});
  }

  void plan_pids() {
    if (!request_.limits.pids || !take("worker-pids", "pids")) return;
    set_all({"pids.max", std::to_string(*request_.limits.pids)});
  }

  std::vector<CpuSet> cpusets() {
    const WorkerLimits& limits = request_.limits;
    if (limits.cpuset_source == CpusetSource::kBinding) return request_.bound;
    if ((limits.cpuset & request_.allowed) != limits.cpuset) {
      plan_.problems.push_back(concat("--worker-cpuset=", to_text(limits.cpuset),
                                      ": this process may use CPUs ", to_text(request_.allowed)));
      return {};
    }
    for (std::size_t rank = 0; rank < request_.bound.size(); ++rank) {
      if ((request_.bound[rank] & limits.cpuset) == request_.bound[rank]) continue;
      plan_.problems.push_back(
          concat("--worker-cpuset=", to_text(limits.cpuset), ": --numa-binding gives local rank ",
                 rank, " CPUs ", to_text(request_.bound[rank]),
                 "; leave one of the two out, or give --worker-cpuset=binding"));
      return {};
    }
    return std::vector<CpuSet>(plan_.workers.size(), limits.cpuset);
  }

  void plan_cpuset() {
    if (request_.limits.cpuset_source == CpusetSource::kNone) return;
    const std::vector<CpuSet> cpus = cpusets();
    if (cpus.size() != plan_.workers.size()) return;
    if (!take("worker-cpuset", "cpuset")) {
      plan_.affinity = request_.bound.empty() ? cpus : request_.bound;
      return;
    }
    for (std::size_t rank = 0; rank < cpus.size(); ++rank) {
      plan_.workers[rank].push_back({kCpusetFile, to_text(cpus[rank]), "cpuset.cpus.effective"});
    }
  }

  void plan_io() {
    std::map<std::string, std::string> disks;  // number → as given
    std::vector<CgroupSetting> settings;
    for (const IoLimit& limit : request_.limits.io) {
      const std::string number = disk_number(tree_, limit);
      if (number.empty()) {
        plan_.problems.push_back(concat("--worker-io: ", limit.device,
                                        ": no block device is there, or below its file system"));
        continue;
      }
      const auto [known, is_new] = disks.emplace(number, limit.device);
      if (!is_new) {
        plan_.problems.push_back(concat("--worker-io: ", known->second, " and ", limit.device,
                                        " are one disk (", number, ")"));
        continue;
      }
      settings.push_back({kIoFile, io_value(number, limit)});
    }
    if (request_.limits.io.empty() || !take("worker-io", "io")) return;
    for (const CgroupSetting& setting : settings) set_all(setting);
  }

  const IsolationRequest& request_;
  const CgroupTree& tree_;
  IsolationPlan plan_;
};

}  // namespace

std::string parse_memory_limit(std::string_view text, WorkerLimits& limits) {
  limits.memory_bytes.reset();
  if (text == kNone) return {};
  std::uint64_t bytes = 0;
  if (!parse_size(text, bytes).empty() || bytes < kLeastMemory) {
    return "wants a size of at least 1M, as in 64G, 1T or a number of bytes, or none";
  }
  limits.memory_bytes = bytes;
  return {};
}

std::string parse_pids_limit(std::string_view text, WorkerLimits& limits) {
  limits.pids.reset();
  if (text == kNone) return {};
  const auto number = parsed_number<std::uint64_t>(text);
  if (!number || *number == 0 || *number > kMostPids) {
    return concat("wants a number from 1 to ", kMostPids, ", or none");
  }
  limits.pids = *number;
  return {};
}

std::string parse_cpuset(std::string_view text, WorkerLimits& limits) {
  limits.cpuset_source = CpusetSource::kNone;
  limits.cpuset = {};
  if (text == kNone) return {};
  if (text == "binding") {
    limits.cpuset_source = CpusetSource::kBinding;
    return {};
  }
  const auto cpus = parse_cpu_list(text);
  if (!cpus || cpus->empty()) return "wants a list of CPUs, as in 0-7,16, or binding, or none";
  limits.cpuset_source = CpusetSource::kList;
  limits.cpuset = *cpus;
  return {};
}

std::string parse_io_limits(std::string_view text, WorkerLimits& limits) {
  limits.io.clear();
  if (text == kNone) return {};
  while (!text.empty()) {
    const std::string_view part = take_until(text, ";");
    if (part.empty()) continue;
    IoLimit limit;
    if (std::string why = parse_io_limit(part, limit); !why.empty()) return why;
    const bool is_known = std::any_of(limits.io.begin(), limits.io.end(), [&](const auto& each) {
      return each.device == limit.device;
    });
    if (is_known) return limit.device + " is given twice";
    limits.io.push_back(std::move(limit));
  }
  return limits.io.empty() ? "wants DEVICE:rbps=SIZE,wbps=SIZE,riops=N,wiops=N, or none" : "";
}

std::string parse_limits_mode(std::string_view text, WorkerLimits& limits) {
  if (text != "required" && text != "best-effort") return "must be required or best-effort";
  limits.required = text == "required";
  return {};
}

std::vector<ShownLimit> shown_limits(const WorkerLimits& limits) {
  std::vector<ShownLimit> shown;
  if (limits.memory_bytes) shown.push_back({"worker-memory", size_text(*limits.memory_bytes)});
  if (limits.pids) shown.push_back({"worker-pids", std::to_string(*limits.pids)});
  if (limits.cpuset_source == CpusetSource::kList) {
    shown.push_back({"worker-cpuset", to_text(limits.cpuset)});
  } else if (limits.cpuset_source == CpusetSource::kBinding) {
    shown.push_back({"worker-cpuset", "binding"});
  }
  for (const IoLimit& limit : limits.io) shown.push_back({"worker-io", to_text(limit)});
  return shown;
}

std::string size_text(std::uint64_t bytes) {
  constexpr std::array kUnits = {"KiB", "MiB", "GiB", "TiB", "PiB"};
  if (bytes < 1024) return concat(bytes, " bytes");
  double value = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  for (; value >= 1024 && unit + 1 < kUnits.size(); ++unit) value /= 1024;
  char text[32];
  // The form is "1.5 GiB", but "96 MiB".
  const double tenths = value * 10;
  const bool is_whole = static_cast<double>(static_cast<std::uint64_t>(value)) == value;
  std::snprintf(text, sizeof text, is_whole || tenths >= 1000 ? "%.0f %s" : "%.1f %s", value,
                kUnits[unit]);
  return text;
}

std::string to_text(const IoLimit& limit) {
  std::string text = limit.device;
  char separator = ':';
  for (const IoKey& key : kIoKeys) {
    if (const auto& value = limit.*key.field) {
      text += concat(separator, key.name, "=", *value);
      separator = ',';
    }
  }
  return text;
}

std::string IsolationPlan::shortfall() const {
  if (unenforced.empty()) return {};
  std::map<std::string, std::string> options;  // by the reason
  for (const UnenforcedLimit& each : unenforced) {
    std::string& names = options[each.why];
    names += concat(names.empty() ? "--" : ", --", each.option);
  }
  std::string text;
  for (const auto& [why, names] : options) {
    text += concat(text.empty() ? "" : "; ", names, " can't be enforced: ", why);
  }
  if (!affinity.empty()) text += "; the CPUs are bound by affinity, which a worker may change";
  return text;
}

IsolationPlan plan_isolation(const IsolationRequest& request, const CgroupPlace& place,
                             const CgroupTree& tree) {
  if (!request.limits.any()) return {};
  return IsolationPlanner(request, place, tree).run();
}

std::string difference(const CgroupSetting& setting, const std::string& seen) {
  const std::string text = without_end(seen);
  const std::string as_is = concat("is \"", one_line(text), "\", not \"", setting.value, "\"");
  if (setting.file == kCpusetFile) {
    const auto wanted = parse_cpu_list(setting.value), got = parse_cpu_list(text);
    return wanted && got && *wanted == *got ? "" : as_is;
  }
  if (setting.file != kIoFile) return text == setting.value ? "" : as_is;
  // The file has a line for each device.
  std::string rest = text + "\n";
  for (std::size_t end; (end = rest.find('\n')) != std::string::npos; rest.erase(0, end + 1)) {
    if (without_end(rest.substr(0, end)) == setting.value) return {};
  }
  return as_is;
}

}  // namespace ddprun::agent
