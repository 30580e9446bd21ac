// SPDX-License-Identifier: Apache-2.0
// How busy, full and hot this node's GPUs are (ddprun-gpus, NVML). io thread only; parsing is pure.
#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "agent/gpu/gpu_helper.h"
#include "common/clock.h"

namespace ddprun::agent {

// nullopt: the GPU, or its driver, can't say.
struct GpuStatus {
  std::optional<double> use;  // share of the last moments in which a kernel ran, 0 … 1
  std::optional<std::uint64_t> memory_bytes, memory_used_bytes;
  std::optional<double> watts, celsius;
};
using GpuStatuses = std::map<int, GpuStatus>;  // by NVML's index

// ddprun-gpus' lines (gpu_reading.h); what isn't of that form is left out.
GpuStatuses parse_gpu_statuses(std::string_view lines);

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
