// SPDX-License-Identifier: Apache-2.0
// The status pages that are open (docs/status-page.md). Each is told the newest state, as often as
// it can read. A state is made once for all of them, and only while there are some. io thread only.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "common/clock.h"
#include "rendezvous/daemon/daemon_status.h"
#include "rendezvous/daemon/jobs_writer.h"
#include "rendezvous/daemon/tails.h"
#include "rendezvous/membership/machine.h"
#include "rendezvous/wire/frame_stream.h"

namespace ddprun::rendezvous {

// Differs where a page is to be told of it: what is no clock, and no count of requests.
std::string watch_key(const DaemonStatus& status);

// {"tail":{"run_id":"…","rank":3}}, whose output a page looks at, or {"tail":null}. Throws
// Error(kProtocol), one line.
std::optional<Tails::Rank> read_page_message(std::string_view text);

class Watchers : public std::enable_shared_from_this<Watchers> {
 public:
  struct Status {
    std::string json;
    std::string key;  // watch_key()
  };
  struct Source {
    std::function<Status()> status;
    // Calls `done` with what is watched once that is kept: at once, later, or, deposed, never.
    std::function<void(std::function<void(const WatchedJobs&)> done)> jobs;
    // Asks for what a rank wrote last; said() follows.
    Tails::Ask tail;
  };

  Watchers(boost::asio::io_context& io, const WatcherLimits& limits, Source source);

  // An upgraded stream, not started. One too many is told so, and closed.
  void take(const std::shared_ptr<membership::FrameStream>& frames);
  // An agent's answer to Source::tail.
  void said(membership::ConnectionId connection, const membership::Tail& tail);
  // Tells them why, and closes them.
  void end_all(const std::string& why);
  void stop();  // closes them; no call follows

  std::size_t size() const { return watchers_.size(); }

 private:
  struct Watcher {
    std::shared_ptr<membership::FrameStream> frames;  // second owner: its operations
    std::uint64_t version = 0;                        // of the state that it was sent last; 0: none
    Clock::time_point said_at{};                      // a frame, to it
    Clock::time_point pinged_at{}, heard_at{};
  };

  void arm();
  void look();
  void make_state();
  void made(const WatchedJobs& jobs);
  void tell_all();
  void tell_others_soon();
  void heard(std::uint64_t number, std::string_view text);
  void tell_tails();
  void arm_tails();
  void forget(std::uint64_t number);
  void end(Watcher& watcher, const std::string& why);

  const WatcherLimits limits_;
  const Source source_;
  boost::asio::steady_timer timer_;
  bool timing_ = false, telling_ = false, stopped_ = false;
  std::map<std::uint64_t, Watcher> watchers_;
  std::uint64_t next_number_ = 1;
  Clock::time_point next_look_{};
  Clock::time_point next_state_{};  // is not made before
  // The newest state, while somebody watches, and for `interval` after that.
  std::uint64_t version_ = 0;  // becomes another one where what they are to be told is another
  std::string state_;          // a frame; empty: there is none yet
  std::string seen_;           // the keys of what it was made of
  bool making_ = false;        // the next one waits until it is kept
  std::uint64_t era_ = 0;      // of what is made: that of an earlier one is dropped
  // The ranks' output that pages look at.
  Tails tails_;
  boost::asio::steady_timer tail_timer_;
};

}  // namespace ddprun::rendezvous
