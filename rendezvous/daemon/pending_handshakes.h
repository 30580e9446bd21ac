// SPDX-License-Identifier: Apache-2.0
// Connections that have not said yet who they are, in all parts of the daemon. Their number is
// limited, also for each address, and so is their time. The oldest one of the address with the most
// makes way: a flood displaces nobody of another address. io thread only.
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
#include <set>
#include <string>
#include <utility>

#include "common/clock.h"
#include "common/socket.h"
#include "common/unique_fd.h"

namespace ddprun::rendezvous {

class PendingHandshakes;

// A connection's place among them, moved along with it. Its holder says what ends the connection.
class Newcomer {
 public:
  using End = std::function<void(const std::string& reason)>;

  Newcomer() = default;  // of no connection: always in its place
  Newcomer(Newcomer&& other) noexcept;
  Newcomer& operator=(Newcomer&& other) noexcept;
  ~Newcomer();

  // `end` closes the connection at once. Called at most once, from the io context, never from
  // inside this call; the place is lost then.
  void ended_by(End end);
  // `left` is called once, when the place is given up or lost; not after PendingHandshakes::stop().
  void when_left(std::function<void()> left);
  // From now on it makes way for nobody: its holder ends it where need be. The time limit stays.
  void pin();
  // Its peer, as PendingHandshakes counts it.
  const std::string& address() const { return address_; }
  std::uint64_t number() const { return number_; }

 private:
  friend class PendingHandshakes;
  std::shared_ptr<PendingHandshakes>
      all_;  // null: none, or given up. Second owner: places outlive stop()
  std::string address_;
  std::uint64_t number_ = 0;
};

class PendingHandshakes : public std::enable_shared_from_this<PendingHandshakes> {
 public:
  struct Options {
    std::size_t max = 4096;
    std::size_t max_per_address = 2048;
    std::chrono::milliseconds time_limit{20'000};  // for all that is asked of one
    // From this descriptor on they come for others that make way: the rest is for files and agents.
    int max_descriptor = 1 << 30;
  };

  PendingHandshakes(boost::asio::io_context& io, Options options);

  // nullopt: there is no descriptor, and nobody makes way. `connection` may get another descriptor.
  std::optional<Newcomer> admit(const SocketAddress& peer, UniqueFd& connection);
  // Ends the connection that has this place, if one has.
  void end(std::uint64_t number, const std::string& reason);
  void stop();  // no call of an End or a `left` follows

  std::size_t size() const { return all_.size(); }

  // As network_of().
  static std::string address_of(const SocketAddress& peer);

 private:
  friend class Newcomer;
  struct Group {
    std::set<std::uint64_t> members;  // oldest first; without pinned ones
  };
  struct Place {
    std::string address;
    Clock::time_point since;
    Newcomer::End end;
    std::function<void()> left;
  };
  // The one that makes way first is the last: the largest, of these the one with the oldest member.
  using Rank = std::pair<std::size_t, std::uint64_t>;

  static Rank rank(const Group& group);
  void change(const std::string& address, const std::function<void(Group&)>& edit);
  void leave(std::uint64_t number);
  std::uint64_t next_to_go() const;  // 0: nobody
  bool lower(UniqueFd& connection);
  void say_too_many(const std::string& what);
  void arm_timer();

  const Options options_;
  boost::asio::steady_timer timer_;
  bool timing_ = false;
  std::map<std::uint64_t, Place> all_;  // oldest first
  std::map<std::string, Group> groups_;
  std::map<Rank, std::string> by_rank_;
  std::uint64_t next_number_ = 1;
  bool said_too_many_ = false;
};

// A TLS session costs time and memory before anything is known of its asker. Newcomers have a
// limited number of them, in all and of one address. The others wait, a descriptor each. Addresses
// take turns, so that those of a flood wait for each other. io thread only.
class TlsAdmission : public std::enable_shared_from_this<TlsAdmission> {
 public:
  struct Options {
    std::size_t max_under_way = 128;
    std::size_t max_per_address = 32;  // of these: others need not wait for one that floods
    // From the handshake until it is known who it is. After it one makes way for others that wait;
    // after brief_turn one of an address that has several, for an address that has none.
    std::chrono::milliseconds turn{2'000};
    std::chrono::milliseconds brief_turn{250};
    // One of an address for which many others wait has a shorter turn, so that all of these have
    // theirs in this time. It is less than they may wait at all.
    std::chrono::milliseconds all_turns{10'000};
    // Begins a TLS session; its turn is over when the newcomer has left its place.
    std::function<void(UniqueFd connection, Newcomer newcomer)> begin;
  };

  TlsAdmission(boost::asio::io_context& io, std::shared_ptr<PendingHandshakes> newcomers,
               Options options);

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
  std::optional<Waiting> next_of(std::deque<std::string>& names);
  void begin_more();
  void over(std::uint64_t number);
  void make_way();
  const UnderWay& first_to_go() const;
  Clock::time_point time_to_go(const UnderWay& first) const;

  Options options_;
  boost::asio::io_context& io_;
  const std::shared_ptr<PendingHandshakes> newcomers_;  // second owners: its members
  boost::asio::steady_timer timer_;
  std::map<std::string, Address> addresses_;
  // Each address with somebody waiting is in one of them: fresh_ where it had none under way.
  std::deque<std::string> fresh_, in_turn_;
  std::map<std::uint64_t, UnderWay> under_way_;  // oldest first
  std::uint64_t next_number_ = 0;
};

}  // namespace ddprun::rendezvous
