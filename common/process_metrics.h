// SPDX-License-Identifier: Apache-2.0
// What this process uses, under the names that all exporters have for it (process_…).
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "common/metrics_text.h"

namespace ddprun::metrics {

// What the kernel does not say is 0, or nullopt.
struct ProcessUse {
  double cpu_seconds = 0;
  std::uint64_t virtual_bytes = 0, resident_bytes = 0;
  std::optional<std::uint64_t> num_open_fds;  // nullopt: more than are counted one by one
  std::uint64_t max_fds = 0;
  double start_timestamp_seconds = 0;  // since 1970
};

// Of /proc/self; waits for nothing. Up to Linux 6.2 descriptors are counted one by one, 16,384 at
// most.
ProcessUse own_use();

void write(TextWriter& out, const ProcessUse& use);

// When the machine began, in seconds since 1970, as /proc/stat has it; 0: it isn't there. Pure.
std::uint64_t parse_boot_time(std::string_view proc_stat);

}  // namespace ddprun::metrics
