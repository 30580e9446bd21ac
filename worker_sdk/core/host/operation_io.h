// SPDX-License-Identifier: Apache-2.0
// Socket I/O inside an operation. Every wait checks the deadline and the node's failure. A
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

// Longest time until a thread that waits for something else sees another rank's failure.
inline constexpr std::chrono::milliseconds kLook{20};

class OperationIo {
 public:
  // `look` throws anything else that ends the call; it is called whenever the node's failure is
  // checked.
  explicit OperationIo(NodeGroup& group, std::function<void()> look = {})
      : group_(group), look_(std::move(look)) {}

  // Throws what has ended the call, if anything has: the node's failure, or Error(kTimeout) naming
  // `rank`, which this waits for.
  void check(int rank, const Call& call);

  // Returns when one of `polls` is ready, or after a short while. Throws as check() does.
  void wait(std::vector<pollfd>& polls, int rank, const Call& call);

  // Transfer exactly `size` bytes, for small data and single streams.
  void send_all(int fd, const void* data, std::size_t size, int rank, const Call& call);
  void receive_all(int fd, void* data, std::size_t size, int rank, const Call& call);

  // Open a connection to hello.to and send the hello, or take the one that `rank` opened to this
  // rank. A refused connection counts as ended: ranks listen as long as they have their
  // communicator.
  UniqueFd open(const Endpoint& endpoint, const Hello& hello, const Call& call);
  UniqueFd take(ArrivalBook& arrivals, int rank, Purpose purpose, int index, const Call& call);

  // Called when a connection ended: the rank that failed is soon known. Waits a moment for that
  // failure and throws it; returns if none comes.
  void await_failure(const Call& call);

  // The connection to `rank` ended: does the same, then throws that `rank` itself is lost.
  [[noreturn]] void connection_ended(int rank, const std::string& how, const Call& call);

 private:
  void look() const {
    if (look_) look_();
  }

  NodeGroup& group_;
  const std::function<void()> look_;
};

}  // namespace ddprun::host
