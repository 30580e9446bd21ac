// SPDX-License-Identifier: Apache-2.0
// How busy processes keep the GPUs (ddprun-gpus, NVML), for ranks that show nothing else. io thread
// only.
#pragma once

#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "agent/gpu/gpu_helper.h"

namespace ddprun::agent {

// Share of the GPU that a process used most, in percent, by pid as the driver knows it.
using GpuShares = std::map<pid_t, int>;

// "PID PERCENT" lines; what isn't of that form is skipped. Of several GPUs the largest share
// counts.
GpuShares parse_gpu_shares(std::string_view lines);

class GpuUse {
 public:
  // `program`: ddprun-gpus, started when it is first wanted.
  GpuUse(boost::asio::io_context& io, std::string program) : helper_(io, std::move(program)) {}

  // Asks for the shares since it was asked last (the last second, at first). Does nothing while a
  // question is open, or where there is no GPU.
  void ask();

  // An answer has come since taken().
  bool has_answer() const { return answer_.has_value(); }
  void taken() { answer_.reset(); }

  // The largest share that one of `family` has in it; 0: none.
  int percent_of(const std::vector<pid_t>& family) const;

 private:
  std::optional<GpuShares> answer_;
  LazyGpuHelper helper_;  // behind what its answers change
};

}  // namespace ddprun::agent
