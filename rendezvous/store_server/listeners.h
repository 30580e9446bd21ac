// SPDX-License-Identifier: Apache-2.0
// Accepts a store's clients, and refuses those that may not use it. I/O thread only.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/socket.h"
#include "common/unique_fd.h"

namespace ddprun::store {

// Makes replies leave at once, and a vanished host be noticed in about four minutes.
void set_socket_options(int fd);

// Accepts connections that wait at a listener, at most `most`, and passes each to `take` until that
// returns false. Returns 0, or the error because of which no more can be accepted.
int accept_waiting(int listener, int most,
                   const std::function<bool(UniqueFd connection, const SocketAddress& peer)>& take);

class Listeners {
 public:
  // `epoll` gets the listeners' events, each with the listener's index as its data. `name` is for
  // log lines. If `only_user` is set, other users' processes are refused.
  Listeners(int epoll, std::string name, std::optional<uid_t> only_user);

  // See StoreServer::listen().
  void add(UniqueFd listener, bool is_for_loopback);

  // Passes the connections that wait at this listener to `take`. Returns 0, or the error because of
  // which no more can be accepted; the caller then calls pause().
  using Take = std::function<void(UniqueFd connection, const SocketAddress& peer)>;
  int accept(std::size_t index, const Take& take);

  // Removes the listeners from the epoll set. Logs each error once.
  void pause(int accept_error, std::size_t num_connections);
  void resume();
  bool is_paused() const { return is_paused_; }

 private:
  struct Listener {
    UniqueFd fd;
    bool is_for_loopback = false;
  };

  bool is_welcome(const Listener& listener, int connection, const SocketAddress& peer);

  bool watch(std::size_t index);  // false: see errno

  const int epoll_;
  const std::string name_;
  const std::optional<uid_t> only_user_;
  std::vector<Listener> listeners_;
  bool is_paused_ = false;
  // Each of these is logged only once.
  std::set<uid_t> refused_users_;
  std::set<int> said_errors_;
  bool said_from_elsewhere_ = false;
};

}  // namespace ddprun::store
