// SPDX-License-Identifier: Apache-2.0
// Ranks' output for status pages (docs/status-page.md). While pages look at a rank, its agent is
// asked again and again, once for all of them. Otherwise it is never asked. Pure.
#pragma once

#include <chrono>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/clock.h"
#include "rendezvous/membership/machine.h"

namespace ddprun::rendezvous {

struct TailLimits {
  std::chrono::milliseconds interval{1'000};  // between questions about one rank
  std::chrono::milliseconds pause{250};       // the same for a page that changes its rank
  std::chrono::milliseconds deadline{3'000};  // of an answer; then it is reported, and asked again
};

class Tails {
 public:
  struct Rank {
    std::string run_id;
    int global_rank = 0;

    friend auto operator<=>(const Rank&, const Rank&) = default;
  };
  // JobTable::ask_for_tails() for one rank. It may not call this object.
  using Ask = std::function<membership::TailRoute(const Rank& rank, std::uint64_t request)>;
  using Watcher = std::uint64_t;

  Tails(const TailLimits& limits, Ask ask) : limits_(limits), ask_(std::move(ask)) {}

  // From now on the watcher looks only at this rank; at no rank; has ended.
  void look(Watcher watcher, const Rank& rank, Clock::time_point now);
  void look_away(Watcher watcher);
  void gone(Watcher watcher);
  void clear();

  // Takes an agent's answer. Ignores one without a question, or from another agent.
  void said(membership::ConnectionId connection, const membership::Tail& tail);

  // step() asks the due questions. next_due() returns when the next one is due; nullopt: no page
  // looks.
  void step(Clock::time_point now);
  std::optional<Clock::time_point> next_due() const;

  // news() returns the newest frame about the watcher's rank, valid until the next call; null: it
  // has that. given() says that it was sent.
  const std::string* news(Watcher watcher) const;
  void given(Watcher watcher);

 private:
  struct Looked {
    std::uint64_t request = 0;                         // the last request
    std::optional<membership::ConnectionId> asked_of;  // set: its answer is awaited
    Clock::time_point asked_at{}, due{};
    std::vector<std::string> lines;  // of the last answer
    std::string frame;               // empty: nothing is known yet
    std::uint64_t version = 0;       // of frame
  };
  struct Looking {
    std::optional<Rank> rank;
    std::uint64_t version = 0;       // of the last given frame; 0: none
    Clock::time_point not_before{};  // a rank that only it looks at isn't asked before
  };

  void ask(const Rank& rank, Looked& looked, Clock::time_point now);
  static void show(const Rank& rank, Looked& looked, const std::string& note);

  const TailLimits limits_;
  const Ask ask_;
  std::map<Rank, Looked> ranks_;  // with at least one watcher
  std::map<Watcher, Looking> watchers_;
  std::uint64_t last_request_ = 0;
};

// Limits of status pages (docs/status-page.md). Plain data.
struct WatcherLimits {
  std::size_t num = 64;  // open pages
  std::size_t state_bytes = std::size_t{3} << 20;
  std::chrono::milliseconds interval{1'000};      // least time between states
  std::chrono::milliseconds status_after{5'000};  // after so long without a frame
  std::chrono::milliseconds ping_interval{20'000};
  std::chrono::milliseconds silence{60'000};  // closed without a pong for so long
  TailLimits tails;
};

}  // namespace ddprun::rendezvous
