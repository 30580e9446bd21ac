// SPDX-License-Identifier: Apache-2.0
// Facts from the kernel about this machine and its processes.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace ddprun {

// The folder that the running program's file is in, without a slash at its end. Throws
// Error(kSystem) where /proc is missing.
std::string own_folder();

// Path of `name`, a program that is a part of ddprun: beside the running one, else in
// ../libexec/ddprun. Errors as own_folder().
std::string helper_program(const std::string& name);

// As gethostname(2) says it; "?" where it says nothing.
std::string host_name();

// Memory of a process that is in RAM (VmRSS). nullopt: there is no such process.
std::optional<std::size_t> resident_bytes(pid_t pid);

// When a process began, in clock ticks since the machine did. nullopt: there is no such process.
std::optional<std::uint64_t> start_ticks(pid_t pid);

// Which run of this machine it is, whose monotonic clock goes on for as long: the kernel's random
// id; empty where it can't be read.
std::string boot_id();

}  // namespace ddprun
