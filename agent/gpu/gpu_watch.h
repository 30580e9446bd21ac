// SPDX-License-Identifier: Apache-2.0
// The last that ddprun-gpus said of how this node's GPUs are. io thread only.
#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <string>
#include <utility>

#include "agent/gpu/gpu_helper.h"
#include "agent/gpu/gpu_status.h"
#include "common/clock.h"

namespace ddprun::agent {

class GpuWatch {
 public:
  // An answer that is older says nothing of now: the driver hangs.
  static constexpr std::chrono::seconds kMaxAge{15};

  // `program`: ddprun-gpus, started when it is first asked; empty: there are no GPUs.
  GpuWatch(boost::asio::io_context& io, std::string program) : helper_(io, std::move(program)) {}

  // The answer follows. Does nothing while a question is open, or where there is no GPU.
  void ask();
  // The last answer; empty: there is none of the last kMaxAge.
  GpuStatuses last(Clock::time_point now) const;

 private:
  GpuStatuses answer_;
  Clock::time_point answered_at_{};
  LazyGpuHelper helper_;  // behind what its answers change
};

}  // namespace ddprun::agent
