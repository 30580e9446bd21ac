// SPDX-License-Identifier: Apache-2.0
// Waits until a round's cgroup has no process any more: the kernel says so by a change of its
// cgroup.events (inotify). io thread only.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <memory>

#include "agent/isolation/round_cgroup.h"
#include "common/clock.h"

namespace ddprun::agent {

class EmptyWait : public std::enable_shared_from_this<EmptyWait> {
 public:
  // `done` is called once, from the io context: whether it became empty before `deadline`.
  static std::shared_ptr<EmptyWait> start(boost::asio::io_context& io,
                                          std::shared_ptr<const RoundCgroup> cgroup,
                                          Deadline deadline, std::function<void(bool)> done);
  // No call of `done` any more.
  void abandon();

 private:
  EmptyWait(boost::asio::io_context& io, std::shared_ptr<const RoundCgroup> cgroup,
            Deadline deadline, std::function<void(bool)> done);
  void watch();
  void wait_for_change();
  void look();
  void end(bool is_empty);

  const std::shared_ptr<const RoundCgroup> cgroup_;  // second owner: the group of workers
  const Deadline deadline_;
  boost::asio::posix::stream_descriptor changes_;
  boost::asio::steady_timer timer_;
  std::function<void(bool)> done_;  // empty: over
};

}  // namespace ddprun::agent
