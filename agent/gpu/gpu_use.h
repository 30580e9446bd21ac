// SPDX-License-Identifier: Apache-2.0
// How busy processes keep the GPUs (ddprun-gpus, NVML), for ranks that show nothing else. io thread
// only.
#pragma once

#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
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
  GpuUse(boost::asio::io_context& io, std::string program);
  ~GpuUse();
  GpuUse(const GpuUse&) = delete;
  GpuUse& operator=(const GpuUse&) = delete;

  // Asks for the shares since it was asked last (the last second, at first). Does nothing while a
  // question is open, or where there is no GPU.
  void ask();

  // An answer has come since taken().
  bool has_answer() const { return answer_.has_value(); }
  void taken() { answer_.reset(); }

  // The largest share that one of `family` has in it; 0: none.
  int percent_of(const std::vector<pid_t>& family) const;

 private:
  boost::asio::io_context& io_;
  const std::string program_;
  bool started_ = false;
  std::shared_ptr<GpuHelper> helper_;  // second owner: its read, for a moment
  std::optional<GpuShares> answer_;
  std::shared_ptr<bool> alive_;  // the helper's handler holds it weakly
};

}  // namespace ddprun::agent
