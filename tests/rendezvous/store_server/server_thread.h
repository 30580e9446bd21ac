// SPDX-License-Identifier: Apache-2.0
// A StoreServer on 127.0.0.1 in a thread of its own.
#pragma once

#include <optional>
#include <utility>

#include "common/endpoint.h"
#include "common/socket.h"
#include "rendezvous/store_server/store_server.h"
#include "tests/support/io_thread.h"
#include "tests/support/log_lines.h"

namespace ddprun::store::testing {

using test::LogLines;

class ServerThread : public test::IoThread {
 public:
  explicit ServerThread(StoreServerOptions options = {}) {
    UniqueFd listener = listen_on(resolve({"127.0.0.1", 0}).front());
    endpoint_ = {"127.0.0.1", local_address(listener.get()).port()};
    server_.emplace(io_, std::move(options));
    server_->listen(std::move(listener));
    start_thread();
  }
  ~ServerThread() { kill(); }

  const Endpoint& endpoint() const { return endpoint_; }

  // Destroys the server, its connections with it.
  void kill() {
    if (!is_running()) return;
    on_io_thread([this] { server_.reset(); });
    stop_thread();
  }

  StoreServerStats stats() {
    return on_io_thread([this] { return server_->stats(); });
  }
  StoreServer& server() { return *server_; }

 private:
  Endpoint endpoint_;
  std::optional<StoreServer> server_;
};

}  // namespace ddprun::store::testing
