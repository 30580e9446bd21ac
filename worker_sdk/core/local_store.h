// SPDX-License-Identifier: Apache-2.0
// A store for ranks of this machine that no launcher started. A thread of this process serves it on
// loopback, as long as the object lives. It serves one job's ranks, not the network.
#pragma once

#include <thread>

#include "common/endpoint.h"
#include "common/unique_fd.h"

namespace ddprun {

class LocalStore {
 public:
  // Listens on a free port of 127.0.0.1. A connection that breaks the protocol, or leaves more than
  // 64 MiB of replies unread, is closed. Throws Error if there is no port, descriptor or thread.
  LocalStore();
  // Closes every connection.
  ~LocalStore();

  // Returns the address for MASTER_ADDR and MASTER_PORT, and for store::TcpStore.
  const Endpoint& endpoint() const { return endpoint_; }

 private:
  UniqueFd listener_;
  UniqueFd stop_;  // an eventfd by which the destructor ends the thread
  Endpoint endpoint_;
  std::thread thread_;
};

}  // namespace ddprun
