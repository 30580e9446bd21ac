// SPDX-License-Identifier: Apache-2.0
// Socket I/O inside an operation. Every wait looks at the deadline and at the node's failure. A
// connection that ends becomes an error that names the right rank.
#pragma once

#include <poll.h>

#include <chrono>
#include <functional>
#include <vector>

#include "common/endpoint.h"
#include "common/unique_fd.h"
#include "worker_sdk/core/host/call.h"
#include "worker_sdk/core/host/greeter.h"
#include "worker_sdk/core/host/node_group.h"

namespace ddprun::host {

// Bounds how late a failure of another rank is seen by who waits for something else.
inline constexpr std::chrono::milliseconds kLook{20};

class OperationIo {
 public:
  // `look` throws what else ends the call; it is asked where the node's failure is.
  explicit OperationIo(NodeGroup& group, std::function<void()> look = {})
      : group_(group), look_(std::move(look)) {}

  // Throws what has ended the call, if anything has: the node's failure, or Error(kTimeout) naming
  // `rank`, whom this waits for.
  void check(int rank, const Call& call);

  // Returns when one of `polls` is ready, or after a short while. Throws as check() does.
  void wait(std::vector<pollfd>& polls, int rank, const Call& call);

  // Exactly `size` bytes. For small things and single streams.
  void send_all(int fd, const void* data, std::size_t size, int rank, const Call& call);
  void receive_all(int fd, void* data, std::size_t size, int rank, const Call& call);

  // A connection to hello.to with a hello said, or the one that `rank` opened to us. A refused
  // connection is one that ended: ranks listen as long as they have their communicator.
  UniqueFd open(const Endpoint& endpoint, const Hello& hello, const Call& call);
  UniqueFd take(ArrivalBook& arrivals, int rank, Purpose purpose, int index, const Call& call);

  // A connection ended. Whoever really failed is known soon: waits a moment for the news and throws
  // it; returns where none comes.
  void await_failure(const Call& call);

  // The connection to `rank` ended: the same, then takes `rank` itself for lost.
  [[noreturn]] void connection_ended(int rank, const std::string& how, const Call& call);

 private:
  void look() const {
    if (look_) look_();
  }

  NodeGroup& group_;
  const std::function<void()> look_;
};

}  // namespace ddprun::host
