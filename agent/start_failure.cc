// SPDX-License-Identifier: Apache-2.0
#include "agent/start_failure.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "common/error.h"
#include "common/exit_codes.h"

namespace ddprun::agent {
namespace {

// An error of exec or chdir that stays until somebody mends the node or the command line.
bool is_lasting(int error_number) {
  constexpr std::array kLasting = {ENOENT, ENOTDIR, EACCES, EPERM, ENOEXEC, ELOOP, E2BIG};
  return std::find(kLasting.begin(), kLasting.end(), error_number) != kLasting.end();
}

}  // namespace

void explain_start_failure(const warden::Report& report, const WorkerSpec& worker,
                           const std::string& cpus, membership::WorkerFailure& failure) {
  const std::string& file = worker.argv.front();
  const bool is_missing = report.error_number == ENOENT || report.error_number == ENOTDIR;
  failure.exit_code = is_missing ? kExitNotFound : kExitNotExecutable;
  const std::string why = errno_text(report.error_number);
  switch (report.stage) {
    case warden::Stage::kExec:
      failure.lasting = is_lasting(report.error_number);
      failure.note = "could not exec " + file + ": " + why;
      // The file is there, so it is its interpreter that is not.
      if (report.error_number == ENOENT && ::access(file.c_str(), F_OK) == 0) {
        failure.exit_code = kExitNotExecutable;
        failure.note +=
            " (the file exists: the interpreter in its first line, or its loader, doesn't)";
      } else if (report.error_number == ENOEXEC) {
        failure.note +=
            " (a script needs a first line like #!/bin/sh, a program is of another machine)";
      }
      break;
    case warden::Stage::kCpus:
      failure.note = "could not be bound to CPUs " + cpus + ": " + why +
                     "; were they taken from this process since it started?";
      break;
    case warden::Stage::kCgroup:
      failure.note = "could not enter its cgroup: " + why + "; was it removed by somebody?";
      break;
    case warden::Stage::kDirectory:
      failure.lasting = is_lasting(report.error_number);
      failure.note = "could not enter the directory " + worker.working_directory + ": " + why;
      break;
    default:
      failure.exit_code = kExitNotExecutable;
      failure.note = "could not start a process for " + file + ": " + why;
      if (report.error_number == EAGAIN) {
        failure.note += " (a limit of processes: ulimit -u, or the cgroup's pids.max)";
      }
  }
}

}  // namespace ddprun::agent
