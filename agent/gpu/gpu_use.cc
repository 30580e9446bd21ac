// SPDX-License-Identifier: Apache-2.0
#include "agent/gpu/gpu_use.h"

#include <algorithm>
#include <charconv>

namespace ddprun::agent {

GpuShares parse_gpu_shares(std::string_view lines) {
  GpuShares shares;
  while (!lines.empty()) {
    const std::string_view line = lines.substr(0, lines.find('\n'));
    lines.remove_prefix(std::min(line.size() + 1, lines.size()));
    const char* end = line.data() + line.size();
    pid_t pid = 0;
    int percent = -1;
    const auto [stop, error] = std::from_chars(line.data(), end, pid);
    if (error != std::errc() || stop == end || *stop != ' ') continue;
    const auto [last, wrong] = std::from_chars(stop + 1, end, percent);
    if (wrong != std::errc() || last != end || pid <= 0 || percent < 0 || percent > 100) continue;
    int& share = shares[pid];
    share = std::max(share, percent);
  }
  return shares;
}

void GpuUse::ask() {
  helper_.ask(GpuRequest::kUtilisation,
              [this](const std::string& lines) { answer_ = parse_gpu_shares(lines); });
}

int GpuUse::percent_of(const std::vector<pid_t>& family) const {
  int largest = 0;
  if (!answer_) return largest;
  for (const pid_t pid : family) {
    const auto found = answer_->find(pid);
    if (found != answer_->end()) largest = std::max(largest, found->second);
  }
  return largest;
}

}  // namespace ddprun::agent
