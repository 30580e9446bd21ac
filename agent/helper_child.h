// SPDX-License-Identifier: Apache-2.0
// A helper program of ddprun's own (ddprun-gpus, ddprun-stacks): what may get stuck does so in a
// process beside us. Started, watched by pidfd, reaped; left alone by whoever sweeps up after
// workers. io thread only.
#pragma once

#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "common/helper_processes.h"
#include "common/unique_fd.h"

namespace ddprun::agent {

class HelperChild : public std::enable_shared_from_this<HelperChild> {
 public:
  // Waits until the program is executed. It has a session of its own, our environment, `input` and
  // `output` (−1: /dev/null) as standard input and output, and no standard error. Throws
  // Error(kSystem) naming the file.
  static std::shared_ptr<HelperChild> start(boost::asio::io_context& io, const std::string& program,
                                            int input, int output);

  // `ended` is called once from the io context, when it is reaped.
  void when_ended(std::function<void(int wait_status)> ended) { ended_ = std::move(ended); }

  // SIGKILL. One that is stuck in the kernel is reaped when that lets it end.
  void kill();

 private:
  HelperChild(boost::asio::io_context& io, pid_t pid, UniqueFd pidfd);
  void wait_for_end();

  std::optional<HelperProcess> process_;  // until it is reaped
  boost::asio::posix::stream_descriptor pidfd_;
  std::function<void(int)> ended_;
};

}  // namespace ddprun::agent
