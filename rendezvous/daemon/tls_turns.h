// SPDX-License-Identifier: Apache-2.0
// A TLS session costs time and memory before anything is known of who asks for it: those of
// newcomers are so many, in all and of one address, and the others wait, a descriptor each.
// Addresses take turns, so that those of a flood wait for each other. io thread only.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "common/clock.h"
#include "common/unique_fd.h"
#include "rendezvous/daemon/newcomers.h"

namespace ddprun::rendezvous {

class TlsTurns : public std::enable_shared_from_this<TlsTurns> {
 public:
  struct Options {
    std::size_t max_under_way = 128;
    std::size_t max_per_address = 32;  // of these: others need not wait for one that floods
    // From the handshake until it is known who it is. After it one makes way for others that wait;
    // after brief_turn one of an address that has several, for an address that has none.
    std::chrono::milliseconds turn{2'000};
    std::chrono::milliseconds brief_turn{250};
    // Begins a TLS session; its turn is over when the newcomer has left its place.
    std::function<void(UniqueFd connection, Newcomer newcomer)> begin;
  };

  TlsTurns(boost::asio::io_context& io, std::shared_ptr<Newcomers> newcomers, Options options);

  void take(UniqueFd connection, Newcomer newcomer);
  void stop();  // closes what waits; no call of begin follows

 private:
  struct Waiting {
    UniqueFd connection;
    Newcomer newcomer;
  };
  struct UnderWay {
    std::string address;
    Clock::time_point since;
    std::uint64_t newcomer = 0;
  };
  struct Address {
    std::map<std::uint64_t, Waiting> waiting;  // oldest first
    std::size_t num_under_way = 0;
  };

  void drop(const std::string& name, std::uint64_t number);
  std::optional<Waiting> next();
  std::optional<Waiting> next_of(std::deque<std::string>& names);
  void begin_more();
  void over(std::uint64_t number);
  void make_way();
  const UnderWay& first_to_go() const;
  Clock::time_point time_to_go(const UnderWay& first) const;

  Options options_;
  boost::asio::io_context& io_;
  const std::shared_ptr<Newcomers> newcomers_;  // second owners: its members
  boost::asio::steady_timer timer_;
  std::map<std::string, Address> addresses_;
  // Each address with somebody waiting is in one of the two, once: in the first one where it had
  // none under way when it came.
  std::deque<std::string> fresh_, in_turn_;
  std::map<std::uint64_t, UnderWay> under_way_;  // oldest first
  std::uint64_t next_number_ = 0;
};

}  // namespace ddprun::rendezvous
