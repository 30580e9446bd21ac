// SPDX-License-Identifier: Apache-2.0
#include "agent/gpu/gpu_watch.h"

namespace ddprun::agent {

void GpuWatch::ask() {
  helper_.ask(GpuRequest::kStatus, [this](const std::string& lines) {
    answer_ = parse_gpu_statuses(lines);
    answered_at_ = Clock::now();
  });
}

GpuStatuses GpuWatch::last(Clock::time_point now) const {
  return now - answered_at_ <= kMaxAge ? answer_ : GpuStatuses();
}

}  // namespace ddprun::agent
