// SPDX-License-Identifier: Apache-2.0
// Waits until the driver has freed the GPU memory of a round's processes: until then the next
// round's may find too little. Asks ddprun-gpus (NVML), which may hang without harm. io thread
// only.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/gpu/gpu_helper.h"
#include "agent/gpu/gpu_process.h"

namespace ddprun::agent {

class GpuMemory : public std::enable_shared_from_this<GpuMemory> {
 public:
  // Starts `program` (ddprun-gpus). nullptr: this node has no NVIDIA driver, or it can't be
  // started. Asks at once who holds memory before the first round.
  static std::shared_ptr<GpuMemory> open(boost::asio::io_context& io, const std::string& program);

  // Calls `done` once, from the io context: when nothing of the round holds memory, after `limit`,
  // or when NVML doesn't work. Where it was silent for a whole wait the later ones take no time
  // until it answers again: each tries with a new ddprun-gpus, for the next one. `note`: what is
  // still held, for the user; empty: all is free. Processes that live and are not the round's are
  // named, not waited for.
  using Done = std::function<void(std::string note)>;
  void when_freed(std::chrono::milliseconds limit, Done done);

  // Ends a wait: `done` follows, with no note.
  void give_up();

 private:
  GpuMemory(boost::asio::io_context& io, const std::string& program,
            std::shared_ptr<GpuHelper> helper);
  void ask();
  void answered(const std::string& lines);
  void limit_is_over();
  void start_again();
  void finish(std::string note);

  // Constant after construction.
  boost::asio::io_context& io_;
  const std::string program_;

  std::shared_ptr<GpuHelper> helper_;  // null: can't be started; second owner: its read
  bool is_silent_ = false;             // no answer since a wait without any
  int num_waits_ = 0;
  bool is_heard_ = false;  // in this wait
  boost::asio::steady_timer limit_;
  boost::asio::steady_timer next_;
  std::optional<std::vector<GpuProcess>> before_;  // the first answer
  GpuHolders last_;                                // of the latest answer
  std::chrono::milliseconds waited_{0};            // the limit of the wait under way
  Done done_;                                      // empty: nobody waits
};

}  // namespace ddprun::agent
