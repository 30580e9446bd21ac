// SPDX-License-Identifier: Apache-2.0
// Status pages look at ranks' output (docs/status-page.md). While somebody looks at a rank, its
// agent is asked again and again, once for all who do; else never. Pure.
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
  std::chrono::milliseconds interval{1'000};  // from one question about a rank to the next
  std::chrono::milliseconds pause{250};       // likewise, for one who looks at rank after rank
  std::chrono::milliseconds deadline{3'000};  // of an answer: then that is said, and asked anew
};

class Tails {
 public:
  struct Rank {
    std::string run_id;
    int global_rank = 0;

    friend auto operator<=>(const Rank&, const Rank&) = default;
  };
  // As JobTable::ask_for_tails(), for one. May call nothing here.
  using Ask = std::function<membership::TailRoute(const Rank& rank, std::uint64_t request)>;
  using Watcher = std::uint64_t;

  Tails(const TailLimits& limits, Ask ask) : limits_(limits), ask_(std::move(ask)) {}

  // From now on it looks at this rank, and at no other one; at none; it is gone.
  void look(Watcher watcher, const Rank& rank, Clock::time_point now);
  void look_away(Watcher watcher);
  void gone(Watcher watcher);
  void clear();

  // An agent has said it. Ignores an answer to no question, or from another agent.
  void said(membership::ConnectionId connection, const membership::Tail& tail);

  // Asks what is due; next_due(): when that is. nullopt: nobody looks.
  void step(Clock::time_point now);
  std::optional<Clock::time_point> next_due() const;

  // The newest frame about what it looks at, until the next call; null: it was given that.
  const std::string* news(Watcher watcher) const;
  void given(Watcher watcher);

 private:
  struct Looked {
    std::uint64_t request = 0;                         // the last one
    std::optional<membership::ConnectionId> asked_of;  // set: its answer is due
    Clock::time_point asked_at{}, due{};
    std::vector<std::string> lines;  // as they were said last
    std::string frame;               // empty: nothing is known yet
    std::uint64_t version = 0;       // of it
  };
  struct Looking {
    std::optional<Rank> rank;
    std::uint64_t version = 0;       // that it was given; 0: none
    Clock::time_point not_before{};  // another question for it alone
  };

  void ask(const Rank& rank, Looked& looked, Clock::time_point now);
  static void show(const Rank& rank, Looked& looked, const std::string& note);

  const TailLimits limits_;
  const Ask ask_;
  std::map<Rank, Looked> ranks_;  // that somebody looks at
  std::map<Watcher, Looking> watchers_;
  std::uint64_t last_request_ = 0;
};

// How much status pages may cost (docs/status-page.md). Plain data.
struct WatcherLimits {
  std::size_t num = 64;  // who watch at once
  std::size_t state_bytes = std::size_t{3} << 20;
  std::chrono::milliseconds interval{1'000};      // from one state to the next, at least
  std::chrono::milliseconds status_after{5'000};  // without a frame
  std::chrono::milliseconds ping_interval{20'000};
  std::chrono::milliseconds silence{60'000};  // no ping was answered: it is closed
  TailLimits tails;
};

}  // namespace ddprun::rendezvous
