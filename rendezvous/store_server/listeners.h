// SPDX-License-Identifier: Apache-2.0
// Accepts a store's clients, and turns away those that it isn't for. io thread only.
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

// Replies leave at once; a peer whose host vanished is noticed in about four minutes.
void set_socket_options(int fd);

class Listeners {
 public:
  // `epoll`: the set where their events come, each with the listener's index as its data. `name`:
  // for log lines. `only_user`: others' processes are refused.
  Listeners(int epoll, std::string name, std::optional<uid_t> only_user);

  // As StoreServer::listen().
  void add(UniqueFd listener, bool is_for_loopback);

  // Gives those that wait at the listener of this index to `take`. Returns 0, or the error for
  // which no more can be accepted: pause() then.
  using Take = std::function<void(UniqueFd connection, const SocketAddress& peer)>;
  int accept(std::size_t index, const Take& take);

  // Takes them out of the epoll set. Says why, once for each error.
  void pause(int accept_error, std::size_t num_connections);
  void resume();
  bool is_paused() const { return is_paused_; }

 private:
  struct Listener {
    UniqueFd fd;
    bool is_for_loopback = false;
  };

  bool is_welcome(const Listener& listener, int connection, const SocketAddress& peer);

  bool watch(std::size_t index);  // false: errno

  const int epoll_;
  const std::string name_;
  const std::optional<uid_t> only_user_;
  std::vector<Listener> listeners_;
  bool is_paused_ = false;
  // The log has these once.
  std::set<uid_t> refused_users_;
  std::set<int> said_errors_;
  bool said_from_elsewhere_ = false;
};

}  // namespace ddprun::store
