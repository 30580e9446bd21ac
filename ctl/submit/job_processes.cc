// SPDX-License-Identifier: Apache-2.0
#include "ctl/submit/job_processes.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <utility>

#include "common/env_names.h"
#include "common/error.h"
#include "common/process_stat.h"

namespace ddprun::submit {
namespace {

std::optional<pid_t> pid_named(const std::string& name) {
  pid_t pid = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), pid);
  const bool is_pid = error == std::errc() && end == name.data() + name.size() && pid > 0;
  return is_pid ? std::optional(pid) : std::nullopt;
}

bool was_started_as(pid_t pid, const std::string& id) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/environ");
  if (!file) return false;
  std::string variables("\0", 1);
  try {
    variables.append(std::istreambuf_iterator<char>(file), {});
  } catch (const std::ios_base::failure&) {  // it has ended, or is another user's
    return false;
  }
  const std::string wanted = std::string("\0", 1) + env::kSubmittedAs + "=" + id;
  return variables.find(wanted + std::string("\0", 1)) != std::string::npos;
}

}  // namespace

std::vector<UniqueFd> job_processes(pid_t group, const std::string& id) {
  std::vector<UniqueFd> found;
  if (group <= 1 || (::kill(-group, 0) != 0 && errno == ESRCH)) return found;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    const auto pid = pid_named(entry.path().filename().string());
    if (!pid || ::getpgid(*pid) != group) continue;
    // What is looked at after this is of the process that the descriptor is of, or that has ended.
    UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, *pid, 0)));
    ProcessStat stat;
    if (!process || ::getpgid(*pid) != group || !read_process_stat(*pid, &stat)) continue;
    if (stat.state == 'Z' || stat.state == 'X' || !was_started_as(*pid, id)) continue;
    found.push_back(std::move(process));
  }
  return found;
}

void end_processes(const std::vector<UniqueFd>& processes) {
  for (const UniqueFd& process : processes) {
    if (::syscall(SYS_pidfd_send_signal, process.get(), SIGTERM, nullptr, 0) != 0 &&
        errno != ESRCH) {
      throw_system_error("pidfd_send_signal", errno);
    }
  }
}

}  // namespace ddprun::submit
