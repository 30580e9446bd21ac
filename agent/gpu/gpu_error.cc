// SPDX-License-Identifier: Apache-2.0
#include "agent/gpu/gpu_error.h"

#include <algorithm>
#include <array>

#include "common/parsed_number.h"
#include "common/text.h"

namespace ddprun::agent {

std::optional<GpuError> parse_gpu_error(std::string_view record) {
  std::string_view message = take_until(record, "\n");  // further lines: the record's properties
  std::string_view head = take_until(message, ";");
  take_until(head, ",");  // priority
  take_until(head, ",");  // sequence number
  const auto at_us = parsed_number<std::int64_t>(take_until(head, ","));
  constexpr std::string_view kStart = "NVRM: Xid (", kPci = "PCI:", kDeviceEnd = "): ";
  if (!at_us || !message.starts_with(kStart)) return std::nullopt;
  message.remove_prefix(kStart.size());
  if (message.starts_with(kPci)) message.remove_prefix(kPci.size());
  const std::size_t end = message.find(kDeviceEnd);
  if (end == std::string_view::npos) return std::nullopt;
  GpuError error;
  error.device = message.substr(0, end);
  error.at_us = *at_us;
  message.remove_prefix(end + kDeviceEnd.size());
  const auto xid = parsed_number<int>(take_until(message, ", "));
  if (!xid) return std::nullopt;
  error.xid = *xid;
  message.remove_prefix(std::min(message.find_first_not_of(' '), message.size()));
  error.text = message;
  return error;
}

GpuFault fault_of(int xid) {
  constexpr std::array kPrograms = {13, 31, 43, 45, 68};
  constexpr std::array kHardwares = {46,  48,  62,  64,  74,  79,  95, 109,
                                     119, 120, 140, 143, 155, 156, 158};
  const auto has = [xid](const auto& list) { return std::ranges::find(list, xid) != list.end(); };
  if (has(kPrograms)) return GpuFault::kProgram;
  return has(kHardwares) ? GpuFault::kHardware : GpuFault::kUnknown;
}

}  // namespace ddprun::agent
