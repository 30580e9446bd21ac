// SPDX-License-Identifier: Apache-2.0
// The open status pages (docs/status-page.md). Each gets the newest state as often as it can read.
// A state is made once for all of them, and only while there are some. I/O thread only.
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

// Returns a key that differs if pages must get the new status. Clocks and counts of requests don't
// count.
std::string watch_key(const DaemonStatus& status);

// Reads a page's message: {"tail":{"run_id":"…","rank":3}} names the rank that it looks at;
// {"tail":null}: none. Throws Error(kProtocol), one line.
std::optional<Tails::Rank> read_page_message(std::string_view text);

class Watchers : public std::enable_shared_from_this<Watchers> {
 public:
  struct Status {
    std::string json;
    std::string key;  // watch_key()
  };
  struct Source {
    std::function<Status()> status;
    // Calls `done` with the jobs once they are kept: at once, later or, if deposed, never.
    std::function<void(std::function<void(const WatchedJobs&)> done)> jobs;
    // Asks for a rank's last output; said() follows.
    Tails::Ask tail;
  };

  Watchers(boost::asio::io_context& io, const WatcherLimits& limits, Source source);

  // Takes an upgraded stream that is not started. If there are too many, it is told so, and closed.
  void take(const std::shared_ptr<membership::FrameStream>& frames);
  // Takes an agent's answer to Source::tail.
  void said(membership::ConnectionId connection, const membership::Tail& tail);
  // Tells all pages why, and closes them.
  void end_all(const std::string& why);
  void stop();  // closes all pages; no call follows

  std::size_t size() const { return watchers_.size(); }

 private:
  struct Watcher {
    std::shared_ptr<membership::FrameStream> frames;  // shared with its operations
    std::uint64_t version = 0;                        // of the last sent state; 0: none
    Clock::time_point said_at{};                      // of the last frame to it
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
  Clock::time_point next_state_{};  // the next state isn't made before
  // The newest state, while pages are open, and for `interval` after that.
  std::uint64_t version_ = 0;  // changes if pages must get the new state
  std::string state_;          // as a frame; empty: there is none yet
  std::string seen_;           // the keys of the state's parts
  bool making_ = false;        // a state is being made, or waits to be kept
  std::uint64_t era_ = 0;      // a state of an earlier era is dropped
  // The ranks' output for pages.
  Tails tails_;
  boost::asio::steady_timer tail_timer_;
};

}  // namespace ddprun::rendezvous
