// SPDX-License-Identifier: Apache-2.0
// Accepts on the daemon's port, and tells c10d from HTTP by the first byte. io thread only.
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
    bool is_closed = false;              // no store here: c10d knows neither tokens nor TLS
    int max_store_descriptor = 1 << 30;  // from this one on none is left for the store's clients
  };

  // `store` takes connections that begin with 0x00, `http` those that begin with a letter; both get
  // a non-blocking, close-on-exec socket. Others are closed with a log line.
  // `tls` takes those that begin with TLS; empty: they are closed likewise.
  PortListener(boost::asio::io_context& io, Options options,
               std::shared_ptr<PendingHandshakes> newcomers, Take store, Take http, Take tls);

  void start(std::vector<UniqueFd> listeners);
  void stop();  // closes the listeners and what has not spoken yet; no call follows

  // Connections that have not sent a byte.
  std::size_t num_silent() const { return silent_.size(); }

 private:
  using Descriptor = boost::asio::posix::stream_descriptor;
  // Second owners: the two waits, of which either may complete after the other has settled it.
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
  void settle(Silent& silent);  // closes it unless it was released before
  // Leaves both where there is no byte yet.
  void dispatch(UniqueFd& connection, Newcomer& newcomer);

  const Options options_;
  boost::asio::io_context& io_;
  const std::shared_ptr<PendingHandshakes> newcomers_;  // second owners: its members
  Take store_, http_, tls_;
  std::vector<Descriptor> listeners_;
  std::list<std::shared_ptr<Silent>> silent_;  // oldest first
  std::set<std::string> said_troubles_;
  bool said_no_store_descriptors_ = false;
  bool stopped_ = false;
};

// Connections of this very process to its own port: a ddprun that serves its job's rendezvous is an
// agent of it, too. Nobody is between the two ends, so they need no TLS, which costs a short job
// more than all the rest of its start.
class OwnConnections {
 public:
  void listens_at(const SocketAddress& listener) { listeners_.push_back(listener); }

  // `socket`: a connected one of this process. True: it leads to one of the listeners, and its
  // other end is awaited, in place of that of an earlier call.
  bool await(int socket);

  // Whether `accepted` is the other end of the one that is awaited; true once.
  bool take(int accepted);

 private:
  std::vector<SocketAddress> listeners_;
  // As long as it is open no other process can have a connection of these two addresses.
  UniqueFd awaited_;
  std::string its_address_, its_peer_;
};

}  // namespace ddprun::rendezvous
