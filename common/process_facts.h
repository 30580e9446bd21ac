// SPDX-License-Identifier: Apache-2.0
// Facts from the kernel about this machine and its processes.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace ddprun {

// Returns the folder of the running program's file, without a slash at its end. Throws
// Error(kSystem) if /proc is missing.
std::string own_folder();

// Returns the path of `name`, a program that is a part of ddprun: beside the running one, else in
// ../libexec/ddprun. Throws as own_folder().
std::string helper_program(const std::string& name);

// Returns the name from gethostname(2); "?" if there is none.
std::string host_name();

// Returns a process' memory in RAM (VmRSS). nullopt: there is no such process.
std::optional<std::size_t> resident_bytes(pid_t pid);

// Returns when a process began, in clock ticks since the machine did. nullopt: there is no such
// process.
std::optional<std::uint64_t> start_ticks(pid_t pid);

// Returns the kernel's random id of this boot of the machine; the monotonic clock goes on during
// one boot. Empty if it can't be read.
std::string boot_id();

// Returns the names of a folder's entries, sorted, without those that begin with a point; none
// where it can't be read.
std::vector<std::string> names_in(const std::string& folder);

// Whether NVIDIA's driver is there: asking a missing driver costs a search. True also in WSL, whose
// driver is Windows' own.
inline bool has_nvidia_driver() {
  return ::access("/dev/nvidiactl", F_OK) == 0 || ::access("/dev/dxg", F_OK) == 0;
}

}  // namespace ddprun
