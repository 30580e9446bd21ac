// SPDX-License-Identifier: Apache-2.0
#include "ctl/doctor/judge.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "common/error.h"
#include "common/text.h"
#include "ctl/number_texts.h"

namespace ddprun::doctor {

using ctl::printed;

std::string size_text(double bytes) {
  constexpr const char* kUnits[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  for (; bytes >= 1024 && unit + 1 < std::size(kUnits); ++unit) bytes /= 1024;
  const bool is_whole = bytes == static_cast<double>(static_cast<long long>(bytes));
  return printed(is_whole ? "%.0f " : "%.1f ", bytes) + kUnits[unit];
}

std::string rate_text(double bits_per_second) {
  if (bits_per_second >= 0.9995e9) return printed("%.1f Gb/s", bits_per_second / 1e9);
  return printed(bits_per_second >= 1e7 ? "%.0f Mb/s" : "%.1f Mb/s", bits_per_second / 1e6);
}

Outcome not_known(const Readings& files, const std::string& path) {
  const Reading* reading = files.find(path);
  if (reading == nullptr || reading->error == ENOENT || reading->error == ENOTDIR) {
    return skipped(path + " is not there: another kernel, or a container");
  }
  if (reading->error == EACCES || reading->error == EPERM) {
    return skipped("this user may not read " + path);
  }
  if (reading->error != 0) return unknown(path + ": " + errno_text(reading->error));
  return unknown(path + " has \"" + one_line(reading->text.substr(0, 40)) + "\"");
}

Outcome at_least(const Facts& facts, const std::string& path, double least,
                 const std::string& setting) {
  const auto seen = facts.files.number(path);
  if (!seen) return not_known(facts.files, path);
  const auto wanted = static_cast<long long>(least);
  const Outcome outcome = ok(std::to_string(*seen), concat("at least ", wanted));
  return *seen >= wanted ? outcome : warned(outcome, concat("sysctl -w ", setting, "=", wanted));
}

std::vector<Link> links_up(const Readings& files) {
  constexpr long kUp = 1, kLoopback = 8;  // IFF_UP, IFF_LOOPBACK
  std::vector<Link> links;
  for (const std::string& name : files.names_in("/sys/class/net")) {
    const std::string start = "/sys/class/net/" + name + "/";
    const long flags = std::strtol(files.text(start + "flags").value_or("0").c_str(), nullptr, 0);
    const std::string state = files.text(start + "operstate").value_or("");
    if ((flags & kUp) == 0 || (flags & kLoopback) != 0) continue;
    if (state != "up" && state != "unknown") continue;
    const int node = static_cast<int>(files.number(start + "device/numa_node").value_or(-1));
    links.push_back({name, files.number(start + "mtu").value_or(0),
                     std::max(0LL, files.number(start + "speed").value_or(0)), node});
  }
  return links;
}

Outcome no_speeds() {
  return unknown("the speed of the network adapters: no answer within the deadline");
}

std::vector<RdmaPort> rdma_ports(const Readings& files) {
  std::vector<RdmaPort> ports;
  const std::string top = "/sys/class/infiniband";
  for (const std::string& device : files.names_in(top)) {
    for (const std::string& port : files.names_in(top + "/" + device + "/ports")) {
      const std::string start = top + "/" + device + "/ports/" + port;
      const std::string state = files.text(start + "/state").value_or("");
      const bool is_ethernet = files.text(start + "/link_layer").value_or("") == "Ethernet";
      ports.push_back({device + " port " + port, start, is_ethernet,
                       state.find("ACTIVE") != std::string::npos});
    }
  }
  return ports;
}

std::optional<CpuSet> own_cpus(const Readings& files) {
  for (const std::string& line : lines_in(files.text("/proc/self/status").value_or(""))) {
    const auto words = words_in(line);
    if (words.size() > 1 && words[0] == "Cpus_allowed_list:") return parse_cpu_list(words[1]);
  }
  return std::nullopt;
}

// "NVRM version: NVIDIA UNIX … Kernel Module  550.54.15  Tue …" → "550.54.15".
std::string driver_version(const Readings& files) {
  const std::string text = files.text("/proc/driver/nvidia/version").value_or("");
  for (const std::string& word : words_in(text.substr(0, text.find('\n')))) {
    const bool is_version = word.find('.') != std::string::npos &&
                            word.find_first_not_of("0123456789.") == std::string::npos;
    if (is_version) return word;
  }
  return one_line(text.substr(0, 60));
}

std::vector<std::string> nvidia_gpus(const Readings& files) {
  std::vector<std::string> gpus;
  const std::string top = "/sys/bus/pci/devices";
  for (const std::string& address : files.names_in(top)) {
    const std::string start = top + "/" + address;
    const std::string kind = files.text(start + "/class").value_or("");
    const bool is_gpu = kind.starts_with("0x0300") || kind.starts_with("0x0302");
    const std::string uevent = files.text(start + "/uevent").value_or("");
    if (is_gpu && uevent.find("DRIVER=vfio-pci") == std::string::npos) gpus.push_back(address);
  }
  return gpus;
}

std::string list_text(const std::vector<std::string>& words, std::size_t most) {
  return first_listed(words, most);
}

}  // namespace ddprun::doctor
