// SPDX-License-Identifier: Apache-2.0
#include "common/process_facts.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <utility>

#include "common/error.h"
#include "common/process_stat.h"

namespace ddprun {

std::string own_folder() {
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) throw_system_error("readlink /proc/self/exe", error.value());
  return program.parent_path().string();
}

std::string helper_program(const std::string& name) {
  const std::string folder = own_folder();
  const std::string beside = folder + "/" + name;
  const std::string libexec = folder + "/../libexec/ddprun/" + name;
  const bool is_there = ::access(libexec.c_str(), X_OK) == 0;
  return ::access(beside.c_str(), X_OK) != 0 && is_there ? libexec : beside;
}

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 && name[0] != '\0' ? name.data() : "?";
}

std::optional<std::uint64_t> start_ticks(pid_t pid) {
  ProcessStat stat;
  return read_process_stat(pid, &stat) ? std::optional(stat.start_ticks) : std::nullopt;
}

std::optional<std::size_t> resident_bytes(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("VmRSS:")) return std::stoul(line.substr(6)) * 1024;
  }
  return std::nullopt;
}

std::string boot_id() {
  std::string id;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), id);
  return id;
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    std::string name = entry->path().filename().string();
    if (!name.starts_with('.')) names.push_back(std::move(name));
  }
  std::ranges::sort(names);
  return names;
}

}  // namespace ddprun
