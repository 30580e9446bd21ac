// SPDX-License-Identifier: Apache-2.0
// Errors of GPUs that NVIDIA's driver writes to the kernel's log ("Xid"). Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ddprun::agent {

struct GpuError {
  int xid = 0;
  std::string device;  // the GPU's PCI address, "0000:3b:00"
  std::string text;    // the driver's words: "pid=71, name=python3, GPU has fallen off the bus."
  std::int64_t at_us = 0;  // since the kernel's start
};

// Parses a record of /dev/kmsg: "4,1234,98765432,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=71, …".
// nullopt: the record is about something else.
std::optional<GpuError> parse_gpu_error(std::string_view record);

enum class GpuFault {
  kUnknown,
  kProgram,   // most often the program's own fault, such as an illegal address
  kHardware,  // the GPU has to be reset, drained or replaced
};

// By NVIDIA's table of Xid errors.
GpuFault fault_of(int xid);

}  // namespace ddprun::agent
