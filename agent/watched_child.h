// SPDX-License-Identifier: Apache-2.0
// A child process that an io context watches by pidfd and reaps. Sweeps after dead workers leave it
// alone. io thread only.
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

  // Starts a child; throws as start_child(). `ended` is called once from the io context, when it is
  // reaped.
  static std::shared_ptr<WatchedChild> start(boost::asio::io_context& io,
                                             const ChildCommand& command, Ended ended = nullptr);
  // Watches a child that was started in another way and that nobody else reaps.
  static std::shared_ptr<WatchedChild> adopt(boost::asio::io_context& io, Child child, Ended ended);
  // Starts a helper program of ddprun's (ddprun-gpus, ddprun-stacks): work that may hang runs in a
  // process of its own. It has a session of its own, this process' environment, `input` and
  // `output` (or ChildCommand::kNothing) as standard input and output, and no standard error.
  static std::shared_ptr<WatchedChild> start_helper(boost::asio::io_context& io,
                                                    const std::string& program, int input,
                                                    int output, Ended ended = nullptr);

  pid_t pid() const { return pid_; }
  bool is_running() const { return process_.has_value(); }
  // Sends a signal; does nothing if it has ended. A child that is stuck in the kernel ends when the
  // kernel lets it.
  void signal(int number);
  // `ended` is not called any more; the child is reaped all the same.
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
