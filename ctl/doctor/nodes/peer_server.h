// SPDX-License-Identifier: Apache-2.0
// Answers the other nodes' measurements, on a thread of its own: this node's own measurements block
// meanwhile. peer_protocol.h has what is said.
#pragma once

#include <cstdint>
#include <string>
#include <thread>

#include "common/unique_fd.h"

namespace ddprun::doctor {

class PeerServer {
 public:
  // Listens on a free port of all interfaces of `address`' family, for TCP and UDP. `token`:
  // kTokenBytes long; whoever doesn't know it has no answer. Throws Error.
  PeerServer(const std::string& address, std::string token, int node_rank);
  ~PeerServer();  // ends the thread, at once
  PeerServer(const PeerServer&) = delete;
  PeerServer& operator=(const PeerServer&) = delete;

  std::uint16_t port() const { return port_; }

 private:
  const std::string token_;
  const int node_rank_;
  UniqueFd listener_, datagrams_;
  UniqueFd stop_reader_, stop_writer_;  // a pipe: its end ends the thread
  std::uint16_t port_ = 0;
  std::thread thread_;
};

}  // namespace ddprun::doctor
