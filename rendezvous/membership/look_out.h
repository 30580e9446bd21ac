// SPDX-License-Identifier: Apache-2.0
// While the open connection to one of several endpoints is quiet, the others are tried: only who
// leads takes an agent in, so whoever does has taken the quiet one's place. io thread only.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "rendezvous/membership/frame_stream.h"
#include "rendezvous/membership/keep_alive.h"
#include "rendezvous/membership/link_connector.h"

namespace ddprun::membership {

using LinkConnectors = std::vector<std::unique_ptr<LinkConnector>>;

// Held by shared_ptr, of which the timers' handlers keep a weak one.
class LookOut : public std::enable_shared_from_this<LookOut> {
 public:
  // Called from the io context, never from inside a call of this class; the look-out is over then.
  using Found = std::function<void(std::size_t index, std::shared_ptr<FrameStream> stream)>;

  // `connectors` and `keep_alive` are the owner's, and live until stop() at least.
  LookOut(boost::asio::io_context& io, LinkConnectors& connectors, const KeepAlive& keep_alive);

  // A connection to endpoint `open_at` is open, its keep-alive time is set. From quiet_at() to
  // silent_at() all others are tried side by side, each again after 10 ms … 250 ms.
  void watch(std::size_t open_at, Found found);
  // keep_alive has news of the open connection: what was quiet is so no more.
  void answered();
  // The connectors are free again; nothing is called any more.
  void stop();

  static constexpr std::chrono::milliseconds kLongestAttempt{1'000};
  static constexpr std::chrono::milliseconds kFirstPause{10};
  static constexpr std::chrono::milliseconds kLastPause{250};

 private:
  void wait_for_quiet();
  void look();
  void attempt(std::size_t index);
  void attempt_later(std::size_t index);
  void give_up_attempts();
  template <typename Handler>
  auto guard(Handler handler);

  LinkConnectors& connectors_;
  const KeepAlive& keep_alive_;
  boost::asio::steady_timer quiet_timer_;
  std::vector<boost::asio::steady_timer> pauses_;   // by endpoint
  std::vector<std::chrono::milliseconds> lengths_;  // of the next ones
  std::size_t open_at_ = 0;
  bool looking_ = false;
  std::uint64_t generation_ = 0;
  Found found_;
};

}  // namespace ddprun::membership
