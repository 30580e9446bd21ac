// SPDX-License-Identifier: Apache-2.0
#include "common/cpu_set.h"

#include "common/parsed_number.h"

namespace ddprun {
namespace {

// Takes the CPU at the beginning of `text` off it.
std::optional<int> take_cpu(std::string_view& text) {
  const auto number = take_number<int>(text);
  return number && *number >= 0 && *number < CpuSet::kMostCpus ? number : std::nullopt;
}

}  // namespace

std::optional<CpuSet> parse_cpu_list(std::string_view text) {
  while (text.ends_with('\n') || text.ends_with(' ')) text.remove_suffix(1);
  CpuSet cpus;
  while (!text.empty()) {
    const auto first = take_cpu(text);
    auto last = first;
    if (first && text.starts_with('-')) {
      text.remove_prefix(1);
      last = take_cpu(text);
    }
    if (!first || !last || *last < *first) return std::nullopt;
    for (int cpu = *first; cpu <= *last; ++cpu) cpus.add(cpu);
    if (text.empty()) break;
    if (!text.starts_with(',') || text.size() == 1) return std::nullopt;
    text.remove_prefix(1);
  }
  return cpus;
}

std::string to_text(const CpuSet& cpus) {
  std::string text;
  const std::vector<int> all = cpus.cpus();
  for (std::size_t i = 0; i < all.size();) {
    std::size_t end = i + 1;
    while (end < all.size() && all[end] == all[end - 1] + 1) ++end;
    if (!text.empty()) text += ",";
    text += std::to_string(all[i]);
    if (end - i > 1) text += "-" + std::to_string(all[end - 1]);
    i = end;
  }
  return text;
}

}  // namespace ddprun
