// SPDX-License-Identifier: Apache-2.0
// After a warden was killed: its workers die with it (PDEATHSIG), what they had started becomes the
// agent's child, since the agent is a subreaper too. This kills and reaps those. io thread only.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <memory>

namespace ddprun::agent {

class OrphanSweep : public std::enable_shared_from_this<OrphanSweep> {
 public:
  // `done` is called from the io context once none is left. This program's own session, its
  // helpers (helper_processes.h: living wardens, too) and what they started are left alone: no
  // worker of the dead warden is among them.
  static std::shared_ptr<OrphanSweep> start(boost::asio::io_context& io,
                                            std::function<void()> done);
  // No call of `done` any more.
  void abandon() { done_ = nullptr; }

 private:
  OrphanSweep(boost::asio::io_context& io, std::function<void()> done);
  void step();

  boost::asio::steady_timer timer_;
  std::function<void()> done_;
};

}  // namespace ddprun::agent
