// SPDX-License-Identifier: Apache-2.0
// Where a store's clients come in, and who of them is turned away. io thread only.
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
#include "rendezvous/store_server/event_set.h"

namespace ddprun::store {

// Replies leave at once; a peer whose host vanished is noticed in about four minutes.
void set_socket_options(int fd);

class Listeners {
 public:
  // `name`: for log lines. `only_user`: others' processes are refused. `events` outlives this.
  Listeners(EventSet& events, std::string name, std::optional<uid_t> only_user);

  // As StoreServer::listen().
  void add(UniqueFd listener, bool is_for_loopback);

  // Those that wait at the listener of this index, to `take`. Returns 0, or why no more can be
  // accepted: pause() then.
  using Take = std::function<void(UniqueFd connection, const SocketAddress& peer)>;
  int accept(std::size_t index, const Take& take);

  // Says why, once for each error.
  void pause(int accept_error, std::size_t num_connections);
  void resume();
  bool is_paused() const { return is_paused_; }

 private:
  struct Listener {
    UniqueFd fd;
    bool is_for_loopback = false;
  };

  bool is_welcome(int fd);
  void refuse_from_elsewhere(const SocketAddress& peer);
  // False: errno.
  bool watch(std::size_t index);

  EventSet& events_;
  const std::string name_;
  const std::optional<uid_t> only_user_;
  std::vector<Listener> listeners_;
  bool is_paused_ = false;
  // What the log was told.
  std::set<uid_t> refused_users_;
  std::set<int> said_errors_;
  bool said_from_elsewhere_ = false;
};

}  // namespace ddprun::store
