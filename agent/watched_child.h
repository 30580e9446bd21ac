// SPDX-License-Identifier: Apache-2.0
// A child process that an io context watches by pidfd and reaps; left alone by whoever sweeps up
// after workers. io thread only.
#pragma once

#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "common/child_process.h"

namespace ddprun::agent {

class WatchedChild : public std::enable_shared_from_this<WatchedChild> {
 public:
  using Ended = std::function<void(int wait_status)>;

  // Errors as start_child(). `ended` is called once from the io context, when it is reaped.
  static std::shared_ptr<WatchedChild> start(boost::asio::io_context& io,
                                             const ChildCommand& command, Ended ended = nullptr);
  // One that was started in another way and that nobody else reaps.
  static std::shared_ptr<WatchedChild> adopt(boost::asio::io_context& io, Child child, Ended ended);
  // A helper program of ddprun's own (ddprun-gpus, ddprun-stacks): what may get stuck does so in a
  // process beside us. It has a session of its own, our environment, `input` and `output` (or
  // ChildCommand::kNothing) as standard input and output, and no standard error.
  static std::shared_ptr<WatchedChild> start_helper(boost::asio::io_context& io,
                                                    const std::string& program, int input,
                                                    int output, Ended ended = nullptr);

  pid_t pid() const { return pid_; }
  bool is_running() const { return process_.has_value(); }
  // Nothing where it has ended. One that is stuck in the kernel ends when that lets it.
  void signal(int number);
  // `ended` is not called any more; it is reaped all the same.
  void forget() { ended_ = nullptr; }

 private:
  WatchedChild(boost::asio::io_context& io, Child child, Ended ended);
  void wait_for_end();

  const pid_t pid_;
  std::optional<HelperProcess> process_;  // until it is reaped
  boost::asio::posix::stream_descriptor pidfd_;
  Ended ended_;
};

}  // namespace ddprun::agent
