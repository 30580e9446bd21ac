// SPDX-License-Identifier: Apache-2.0
// Accepts connections of other ranks, and no others: a connection is valid once it has sent a hello
// with the communicator's token. Strangers are dropped at once, silent ones after a few seconds;
// other connections don't wait for them. One thread at a time; never blocks except in accept_one().
#pragma once

#include <poll.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <tuple>
#include <vector>

#include "common/clock.h"
#include "common/random_id.h"
#include "common/unique_fd.h"

namespace ddprun::host {

// A random secret that the ranks share through the store.
using Token = RandomBytes;

enum class Purpose : std::uint16_t {
  kWatch = 1,    // unix: its end is the process' end; a byte means "look at the node's failure"
  kMemory = 2,   // unix: memfds from the first rank of the node
  kControl = 3,  // TCP between the nodes' first ranks: failures
  kRing = 4,     // TCP between carriers: collectives
  kMessage = 5,  // TCP between any two ranks: send and recv
  kNews = 6,     // TCP to another node's first rank: a failure, if one's own first rank is gone
};

// The first bytes of every connection.
struct Hello {
  std::uint64_t magic = 0x3031656f6c6c6568;
  Token token{};
  std::int32_t from = 0;
  std::int32_t to = 0;
  Purpose purpose = Purpose::kWatch;
  std::uint16_t index = 0;  // its number among several of the same purpose
  std::uint32_t reserved = 0;
};
static_assert(sizeof(Hello) == 40);

struct Arrival {
  UniqueFd fd;
  Hello hello;
};

class Greeter {
 public:
  // `listener` is non-blocking; `rank` is the rank that hellos must be for.
  Greeter(UniqueFd listener, const Token& token, int rank)
      : listener_(std::move(listener)), token_(token), rank_(rank) {}

  // Add the descriptors to poll before collect(), and give the poll's limit (negative: none).
  void append_polls(std::vector<pollfd>& polls) const;
  int poll_timeout_ms() const;

  // Accepts connections, reads and judges what has arrived so far.
  std::vector<Arrival> collect();

  // Waits for the next connection; nullopt at the deadline, or when one of `others` is ready.
  std::optional<Arrival> accept_one(Deadline deadline, const std::vector<pollfd>& others);

 private:
  struct Pending {
    UniqueFd fd;
    Deadline until;
    std::size_t received = 0;
    Hello hello;
  };
  enum class Verdict { kMore, kAccept, kDrop };

  void accept_waiting();
  Verdict read_hello(Pending& pending);

  // Constant after construction.
  const UniqueFd listener_;
  const Token token_;
  const int rank_;

  std::deque<Pending> pending_;
  std::deque<Arrival> ready_;       // for accept_one()
  Clock::time_point rest_until_{};  // out of descriptors: nothing is accepted until then
};

// Keeps TCP connections that other ranks opened to this one, until they are asked for. Thread-safe.
class ArrivalBook {
 public:
  // A second connection with the same key replaces the first.
  void add(Arrival arrival) {
    const std::lock_guard lock(mutex_);
    const Key key{arrival.hello.from, arrival.hello.purpose, arrival.hello.index};
    arrived_[key] = std::move(arrival.fd);
    changed_.notify_all();
  }

  // Returns the connection, or nullopt if it hasn't come after `at_most`.
  std::optional<UniqueFd> take(int from, Purpose purpose, int index, Clock::duration at_most) {
    std::unique_lock lock(mutex_);
    const Key key{from, purpose, static_cast<std::uint16_t>(index)};
    const auto there = [&] { return arrived_.contains(key); };
    if (!changed_.wait_until(lock, Clock::now() + at_most, there)) return std::nullopt;
    UniqueFd fd = std::move(arrived_[key]);
    arrived_.erase(key);
    return fd;
  }

 private:
  using Key = std::tuple<int, Purpose, std::uint16_t>;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Key, UniqueFd> arrived_;  // guarded by mutex_
};

}  // namespace ddprun::host
