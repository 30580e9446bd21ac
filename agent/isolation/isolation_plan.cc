// SPDX-License-Identifier: Apache-2.0
#include "agent/isolation/isolation_plan.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "common/log.h"

namespace ddprun::agent {
namespace {

constexpr char kCpusetFile[] = "cpuset.cpus", kIoFile[] = "io.max";

bool has(const std::vector<std::string>& words, const std::string& word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

std::string without_end(std::string text) {
  while (text.ends_with('\n') || text.ends_with(' ')) text.pop_back();
  return text;
}

// "" or why the leaves can't have it.
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

// io.max wants the whole disk of a partition.
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
    // Counted by worker wherever it can be, so that an end for want of memory is known as one; and
    // without it what is written later, from the page cache, is nobody's.
    if (plan_.makes_cgroups && lack_of("memory", plan_.place).empty()) need("memory");
    return std::move(plan_);
  }

 private:
  void need(const std::string& controller) {
    if (!has(plan_.controllers, controller)) plan_.controllers.push_back(controller);
  }

  // False: it isn't enforced by cgroups, and that is noted.
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
    set_all({"memory.swap.max", "0", "", true});  // not there where the kernel counts no swap
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
  // A line for each device.
  std::string rest = text + "\n";
  for (std::size_t end; (end = rest.find('\n')) != std::string::npos; rest.erase(0, end + 1)) {
    if (without_end(rest.substr(0, end)) == setting.value) return {};
  }
  return as_is;
}

}  // namespace ddprun::agent
