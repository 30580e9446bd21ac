// SPDX-License-Identifier: Apache-2.0
#include "agent/gpu/gpu_process.h"

#include <algorithm>
#include <charconv>
#include <cstdio>

#include "common/error.h"
#include "common/log.h"

namespace ddprun::agent {
namespace {

// The number at the beginning of `rest`, and what follows it; false: there is none.
template <typename Number>
bool take_number(std::string_view& rest, Number* number) {
  if (!rest.empty() && rest.front() == ' ') rest.remove_prefix(1);
  const auto [stop, error] = std::from_chars(rest.data(), rest.data() + rest.size(), *number);
  if (error != std::errc()) return false;
  rest.remove_prefix(static_cast<std::size_t>(stop - rest.data()));
  return true;
}

std::string gibibytes(std::uint64_t bytes) {
  if (bytes == 0) return "memory";
  char text[32];
  std::snprintf(text, sizeof text, "%.1f GiB", static_cast<double>(bytes) / (1u << 30));
  return text;
}

}  // namespace

std::string to_line(const GpuProcess& process) {
  return concat(process.device, " ", process.pid, " ", process.bytes);
}

std::optional<GpuProcess> parse_gpu_process(std::string_view line) {
  GpuProcess process;
  const bool whole = take_number(line, &process.device) && take_number(line, &process.pid) &&
                     take_number(line, &process.bytes) && line.empty();
  if (!whole || process.device < 0 || process.pid <= 0) return std::nullopt;
  return process;
}

GpuHolders gpu_holders(const std::vector<GpuProcess>& before, const std::vector<GpuProcess>& now,
                       const std::function<bool(std::int64_t pid)>& is_alive) {
  GpuHolders holders;
  for (const GpuProcess& process : now) {
    const bool was_there =
        std::any_of(before.begin(), before.end(), [&](const GpuProcess& earlier) {
          return earlier.pid == process.pid && earlier.device == process.device;
        });
    if (was_there) continue;
    (is_alive(process.pid) ? holders.foreign : holders.dying).push_back(process);
  }
  return holders;
}

std::string describe(const std::vector<GpuProcess>& processes, std::size_t limit) {
  std::string text;
  for (std::size_t i = 0; i < std::min(limit, processes.size()); ++i) {
    const GpuProcess& process = processes[i];
    text += concat(i == 0 ? "" : ", ", "GPU ", process.device, ": ", gibibytes(process.bytes),
                   " by pid ", process.pid);
  }
  if (processes.size() > limit) text += concat(" and ", processes.size() - limit, " more");
  return text;
}

}  // namespace ddprun::agent
