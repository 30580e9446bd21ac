// SPDX-License-Identifier: Apache-2.0
#include "ctl/doctor/facts.h"

#include "common/env_names.h"

namespace ddprun::doctor {
namespace {

constexpr const char* kHostFiles[] = {
    "/proc/sys/net/core/rmem_max",
    "/proc/sys/net/core/wmem_max",
    "/proc/sys/net/core/somaxconn",
    "/proc/sys/net/ipv4/tcp_rmem",
    "/proc/sys/net/ipv4/tcp_wmem",
    "/proc/sys/net/ipv4/tcp_window_scaling",
    "/proc/sys/net/ipv4/tcp_sack",
    "/proc/sys/net/ipv4/tcp_timestamps",
    "/proc/sys/net/ipv4/tcp_fin_timeout",
    "/proc/sys/net/ipv4/tcp_max_syn_backlog",
    "/proc/sys/net/ipv4/tcp_syncookies",
    "/proc/sys/net/ipv4/ip_local_port_range",
    "/proc/sys/net/ipv4/ip_local_reserved_ports",
    "/proc/sys/fs/file-max",
    "/proc/sys/kernel/pid_max",
    "/proc/sys/kernel/threads-max",
    "/proc/sys/kernel/numa_balancing",
    "/proc/sys/kernel/core_pattern",
    "/proc/sys/vm/swappiness",
    "/proc/sys/vm/overcommit_memory",
    "/proc/self/limits",
    "/proc/self/status",
    "/proc/self/cgroup",
    "/proc/uptime",
    "/sys/kernel/mm/transparent_hugepage/enabled",
    "/sys/devices/system/clocksource/clocksource0/current_clocksource",
    "/sys/devices/system/clocksource/clocksource0/available_clocksource",
    "/sys/fs/cgroup/cgroup.controllers",
    "/etc/systemd/logind.conf",
};

void read_host_files(const Root& root, Readings& files) {
  for (const char* path : kHostFiles) root.read_into(files, path);
  for (const std::string folder : {"/etc/systemd/logind.conf.d", "/run/systemd/logind.conf.d"}) {
    for (const std::string& name : root.names(folder)) root.read_into(files, folder + "/" + name);
  }
  if (!root.names("/run/systemd/seats").empty()) files.set("/run/systemd/seats", {"there"});
  const std::string system = "/sys/devices/system";
  for (const std::string& name : root.names(system + "/cpu")) {
    if (!name.starts_with("cpu") || name.find_first_of("0123456789") != 3) continue;
    const std::string governor = system + "/cpu/" + name + "/cpufreq/scaling_governor";
    if (Reading reading = root.read(governor); reading.error == 0) files.set(governor, reading);
  }
  for (const std::string& name : root.names(system + "/node")) {
    if (name.starts_with("node")) root.read_into(files, system + "/node/" + name + "/cpulist");
  }
  if (const auto own = own_cgroup(files)) {
    root.read_into(files, "/sys/fs/cgroup" + *own + "/cgroup.controllers");
    root.read_into(files, "/sys/fs/cgroup" + *own + "/pids.max");
  }
}

void read_network_files(const Root& root, Readings& files) {
  root.read_into(files, "/proc/net/route");
  for (const std::string& name : root.names("/sys/class/net")) {
    const std::string start = "/sys/class/net/" + name + "/";
    for (const char* file : {"mtu", "operstate", "flags", "device/numa_node"}) {
      root.read_into(files, start + file);
    }
  }
}

void read_gpu_files(const Root& root, Readings& files) {
  const std::string devices = "/sys/bus/pci/devices/";
  for (const std::string& name : root.names("/sys/bus/pci/devices")) {
    const Reading vendor = root.read(devices + name + "/vendor");
    if (vendor.text != "0x10de") continue;
    for (const char* file : {"/vendor", "/class", "/numa_node", "/uevent"}) {
      root.read_into(files, devices + name + file);
    }
  }
  root.read_into(files, "/proc/driver/nvidia/version");
  for (const std::string& name : root.names("/proc/driver/nvidia/gpus")) {
    files.set("/proc/driver/nvidia/gpus/" + name, {});
  }
  for (const std::string& name : root.names("/dev")) {
    if (name.starts_with("nvidia")) files.set("/dev/" + name, {});
  }
}

constexpr char kVirtualEnv[] = "VIRTUAL_ENV";
constexpr char kCondaPrefix[] = "CONDA_PREFIX";

std::string parent_of(const std::string& path) {
  const std::size_t end = path.rfind('/');
  return end == std::string::npos ? "" : path.substr(0, end);
}

// "torch", "torch-2.11.0+cu128.dist-info" → "2.11.0+cu128".
std::string version_in(const std::string& name, const std::string& package) {
  constexpr std::string_view kSuffix = ".dist-info";
  if (!name.starts_with(package + "-") || !name.ends_with(kSuffix)) return "";
  const std::size_t start = package.size() + 1;
  return name.substr(start, name.size() - start - kSuffix.size());
}

// Reads "cuda: Optional[str] = '12.8'", else the "+cu128" of PyTorch's version: "12.8".
std::string cuda_version(const std::string& version_py, const std::string& torch) {
  for (const std::string& line : lines_in(version_py)) {
    if (!line.starts_with("cuda")) continue;
    const std::size_t begin = line.find('\''), end = line.rfind('\'');
    if (begin != std::string::npos && end > begin) return line.substr(begin + 1, end - begin - 1);
  }
  const std::size_t at = torch.find("+cu");
  const std::string digits = at == std::string::npos ? "" : torch.substr(at + 3);
  const bool is_number = digits.find_first_not_of("0123456789") == std::string::npos;
  if (digits.size() < 2 || !is_number) return "";
  return digits.substr(0, digits.size() - 1) + "." + digits.back();
}

WorkerPackages packages_in(const Root& root, const std::string& folder) {
  WorkerPackages found;
  for (const std::string& name : root.names(folder)) {
    if (const std::string version = version_in(name, "torch"); !version.empty()) {
      found.torch = version;
      found.folder = folder;
    }
    for (const std::string cuda : {"11", "12", "13"}) {
      std::string version = version_in(name, "nvidia_nccl_cu" + cuda);
      if (version.empty()) continue;
      found.nccl = std::move(version);
      found.nccl_cuda = cuda;
    }
  }
  if (!found.torch.empty()) {
    found.cuda = cuda_version(root.read(folder + "/torch/version.py").text, found.torch);
  }
  return found;
}

}  // namespace

void read_files(const Root& root, Readings& files) {
  read_host_files(root, files);
  read_network_files(root, files);
  read_gpu_files(root, files);
}

Readings read_link_speeds(const Root& root) {
  Readings files;
  for (const std::string& name : root.names("/sys/class/net")) {
    root.read_into(files, "/sys/class/net/" + name + "/speed");
  }
  return files;
}

Readings read_rdma_files(const Root& root) {
  // A table has up to 256, of which all but the first few are empty.
  constexpr int kMostGids = 16;
  Readings files;
  const std::string top = "/sys/class/infiniband";
  for (const std::string& device : root.names(top)) {
    root.read_into(files, top + "/" + device + "/device/numa_node");
    const std::string ports = top + "/" + device + "/ports";
    for (const std::string& port : root.names(ports)) {
      const std::string start = ports + "/" + port + "/";
      for (const char* file :
           {"state", "phys_state", "rate", "link_layer", "counters/link_downed"}) {
        root.read_into(files, start + file);
      }
      for (int i = 0; i < kMostGids; ++i) {
        const std::string number = std::to_string(i);
        const Reading gid = root.read(start + "gids/" + number);
        if (gid.error != 0 || gid.text.find_first_not_of("0:") == std::string::npos) continue;
        files.set(start + "gids/" + number, gid);
        root.read_into(files, start + "gid_attrs/types/" + number);
      }
    }
  }
  return files;
}

std::vector<std::string> package_prefixes(const Environment& environment,
                                          const std::string& own_folder) {
  std::vector<std::string> prefixes;
  const std::string python = find_variable(environment, env::kPythonExec).value_or("");
  for (const std::string& bin : {parent_of(python), own_folder}) {
    if (!parent_of(bin).empty()) prefixes.push_back(parent_of(bin));
  }
  for (const char* name : {kVirtualEnv, kCondaPrefix}) {
    if (const auto prefix = find_variable(environment, name)) prefixes.push_back(*prefix);
  }
  prefixes.insert(prefixes.end(), {"/usr/local", "/usr"});
  return prefixes;
}

WorkerPackages find_packages(const Root& root, const std::vector<std::string>& prefixes) {
  for (const std::string& prefix : prefixes) {
    for (const std::string& python : root.names(prefix + "/lib")) {
      if (!python.starts_with("python3")) continue;
      for (const char* kind : {"/site-packages", "/dist-packages"}) {
        WorkerPackages found = packages_in(root, prefix + "/lib/" + python + kind);
        if (!found.torch.empty()) return found;
      }
    }
  }
  return {};
}

}  // namespace ddprun::doctor
