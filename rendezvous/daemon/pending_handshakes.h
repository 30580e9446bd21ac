// SPDX-License-Identifier: Apache-2.0
// The connections of all parts of the daemon that have not said who they are. Their number is
// limited, in all and for each address, and so is their time. If there are too many, the oldest
// connection of the address with the most is closed. So a flood displaces no connection of another
// address. I/O thread only.
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

// A connection's place among them. It moves with the connection. Its holder sets how to end the
// connection.
class Newcomer {
 public:
  using End = std::function<void(const std::string& reason)>;

  Newcomer() = default;  // no connection; does nothing
  Newcomer(Newcomer&& other) noexcept;
  Newcomer& operator=(Newcomer&& other) noexcept;
  ~Newcomer();

  // Sets `end`, which closes the connection at once. It is called at most once, from the I/O
  // context, never from inside this call. Then the place is lost.
  void ended_by(End end);
  // Sets `left`, which is called once, when the place is given up or lost; not after
  // PendingHandshakes::stop().
  void when_left(std::function<void()> left);
  // From now on it isn't closed for other connections; its holder must end it if needed. The time
  // limit stays.
  void pin();
  // Returns the peer's address, as PendingHandshakes counts it.
  const std::string& address() const { return address_; }
  std::uint64_t number() const { return number_; }

 private:
  friend class PendingHandshakes;
  // Null: no place, or given up. Shared, since places outlive stop().
  std::shared_ptr<PendingHandshakes> all_;
  std::string address_;
  std::uint64_t number_ = 0;
};

class PendingHandshakes : public std::enable_shared_from_this<PendingHandshakes> {
 public:
  struct Options {
    std::size_t max = 4096;
    std::size_t max_per_address = 2048;
    std::chrono::milliseconds time_limit{20'000};  // of a connection
    // A new connection with this descriptor or a higher one displaces an older one: these
    // descriptors are for files and agents.
    int max_descriptor = 1 << 30;
  };

  PendingHandshakes(boost::asio::io_context& io, Options options);

  // Returns the connection's place; nullopt: descriptors are scarce, and no other can be closed.
  // `connection` may get another descriptor.
  std::optional<Newcomer> admit(const SocketAddress& peer, UniqueFd& connection);
  // Ends the connection that has this place, if any.
  void end(std::uint64_t number, const std::string& reason);
  void stop();  // no `end` and no `left` is called any more

  std::size_t size() const { return all_.size(); }

  // See network_of().
  static std::string address_of(const SocketAddress& peer);

 private:
  friend class Newcomer;
  struct Group {
    std::set<std::uint64_t> members;  // oldest first, without pinned ones
  };
  struct Place {
    std::string address;
    Clock::time_point since;
    Newcomer::End end;
    std::function<void()> left;
  };
  // The group of the last rank is reduced first: the largest one, and among equals the one with the
  // oldest member.
  using Rank = std::pair<std::size_t, std::uint64_t>;

  static Rank rank(const Group& group);
  void change(const std::string& address, const std::function<void(Group&)>& edit);
  void leave(std::uint64_t number);
  std::uint64_t next_to_go() const;  // 0: none
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

// A TLS session costs time and memory before the client is known. So newcomers have a limited
// number of sessions, in all and per address. The others wait, with a descriptor each. Addresses
// take turns, so that a flood's connections wait for each other. I/O thread only.
class TlsAdmission : public std::enable_shared_from_this<TlsAdmission> {
 public:
  struct Options {
    std::size_t max_under_way = 128;
    std::size_t max_per_address = 32;  // so one flooding address doesn't block others
    // A session's turn, from the handshake until the client is known. After it the session is
    // closed if others wait. After brief_turn an address with several sessions loses one if an
    // address without any waits.
    std::chrono::milliseconds turn{2'000};
    std::chrono::milliseconds brief_turn{250};
    // Begins a TLS session. Its turn is over when the newcomer has left its place.
    std::function<void(UniqueFd connection, Newcomer newcomer)> begin;
  };

  TlsAdmission(boost::asio::io_context& io, std::shared_ptr<PendingHandshakes> newcomers,
               Options options);

  void take(UniqueFd connection, Newcomer newcomer);
  void stop();  // closes waiting connections; no call of `begin` follows

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
  const std::shared_ptr<PendingHandshakes> newcomers_;  // shared with its members
  boost::asio::steady_timer timer_;
  std::map<std::string, Address> addresses_;
  // Each address with waiting connections is in one of these: in fresh_ if it had no session under
  // way.
  std::deque<std::string> fresh_, in_turn_;
  std::map<std::uint64_t, UnderWay> under_way_;  // oldest first
  std::uint64_t next_number_ = 0;
};

}  // namespace ddprun::rendezvous
