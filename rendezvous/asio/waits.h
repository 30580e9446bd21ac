// SPDX-License-Identifier: Apache-2.0
// Asio's waits with a callback that is called only when the wait is over. A wait that is cancelled,
// or set again, doesn't call it.
#pragma once

#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/system/error_code.hpp>
#include <utility>

namespace ddprun {

template <typename Then>
auto unless_cancelled(Then then) {
  return [then = std::move(then)](const boost::system::error_code& error) mutable {
    if (!error) then();
  };
}

template <typename Timer, typename Then>
void run_at(Timer& timer, typename Timer::time_point at, Then then) {
  timer.expires_at(at);
  timer.async_wait(unless_cancelled(std::move(then)));
}

template <typename Timer, typename Then>
void run_after(Timer& timer, typename Timer::duration wait, Then then) {
  timer.expires_after(wait);
  timer.async_wait(unless_cancelled(std::move(then)));
}

// Calls `then` once; also if the other side has ended. It may be called too early, so `then` must
// expect EAGAIN: Asio gives a new descriptor the state of a closed one, whose events may be queued.
template <typename Then>
void when_readable(boost::asio::posix::stream_descriptor& descriptor, Then then) {
  descriptor.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                        unless_cancelled(std::move(then)));
}

}  // namespace ddprun
