// SPDX-License-Identifier: Apache-2.0
// Accepts connections on the daemon's port, and tells c10d, HTTP and TLS apart by the first byte.
// I/O thread only.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstddef>
#include <functional>
#include <list>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "common/socket.h"
#include "common/unique_fd.h"
#include "rendezvous/daemon/pending_handshakes.h"

namespace ddprun::rendezvous {

class PortListener : public std::enable_shared_from_this<PortListener> {
 public:
  using Take = std::function<void(UniqueFd connection, Newcomer newcomer)>;
  struct Options {
    std::chrono::milliseconds first_byte_timeout{10'000};
    bool is_closed = false;              // no store: c10d has neither token nor TLS
    int max_store_descriptor = 1 << 30;  // store clients need a lower one
  };

  // `store` takes connections that begin with 0x00, `http` those that begin with a letter, and
  // `tls` those that begin with TLS. All get a non-blocking, close-on-exec socket. Others, and TLS
  // if `tls` is empty, are closed with a log line.
  PortListener(boost::asio::io_context& io, Options options,
               std::shared_ptr<PendingHandshakes> newcomers, Take store, Take http, Take tls);

  void start(std::vector<UniqueFd> listeners);
  void stop();  // closes listeners and silent connections; no call follows

  // The number of connections that have not sent a byte.
  std::size_t num_silent() const { return silent_.size(); }

 private:
  using Descriptor = boost::asio::posix::stream_descriptor;
  // Shared with its two waits: each may complete after the other has settled it.
  struct Silent {
    Descriptor connection;
    Newcomer newcomer;
    boost::asio::steady_timer timer;
    bool settled = false;
    std::list<std::shared_ptr<Silent>>::iterator position;
  };

  void accept_from(std::size_t listener);
  void accepted(UniqueFd connection, Newcomer newcomer);
  std::string accept_some(std::size_t listener);
  void pause(std::size_t listener, const std::string& trouble);
  void settle(Silent& silent);  // closes it unless it was released
  void await_byte(const std::shared_ptr<Silent>& silent);
  // `first`: its first byte, or that its end has come.
  void dispatch(UniqueFd connection, Newcomer newcomer, int first);

  const Options options_;
  boost::asio::io_context& io_;
  const std::shared_ptr<PendingHandshakes> newcomers_;  // shared with its members
  Take store_, http_, tls_;
  std::vector<Descriptor> listeners_;
  std::list<std::shared_ptr<Silent>> silent_;  // oldest first
  std::set<std::string> said_troubles_;
  bool said_no_store_descriptors_ = false;
  bool stopped_ = false;
};

// Connections of this process to its own port: a ddprun that serves its job's rendezvous is an
// agent of it, too. Both ends are in one process, so they need no TLS. TLS would cost a short job
// more than the rest of its start.
class OwnConnections {
 public:
  void listens_at(const SocketAddress& listener) { listeners_.push_back(listener); }

  // `socket` is a connected one of this process. Returns true if it leads to one of the listeners.
  // Then its other end is awaited, instead of an earlier call's.
  bool await(int socket);

  // Returns whether `accepted` is the awaited other end; true only once.
  bool take(int accepted);

 private:
  std::vector<SocketAddress> listeners_;
  // A copy of the socket. While it is open, no other process can have a connection with these two
  // addresses.
  UniqueFd awaited_;
  std::string its_address_, its_peer_;
};

}  // namespace ddprun::rendezvous
