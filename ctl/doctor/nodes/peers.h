// SPDX-License-Identifier: Apache-2.0
// Two nodes measure the way between them. A connection carries one request:
//
//   request  = token (32 hex digits)  kind (1 byte)  num_bytes (u64)  nanoseconds (u64)
//   kGreet   → node rank (u32)  when it came (i64)  when this is sent (i64): ns since 1970
//   kEcho    → each byte that comes, back
//   kReceive → takes bytes until it has num_bytes or nanoseconds have passed since the first one,
//              then says how many (u64) in how long (u64, ns), and closes
//   kSend    → sends until nanoseconds have passed, or num_bytes are sent, and closes
//
// A datagram to the same port number that begins with the token is answered with its size (u32).
// All numbers are big-endian. Requests that don't begin with the token get no answer.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "common/child_process.h"
#include "common/clock.h"
#include "common/endpoint.h"
#include "common/unique_fd.h"
#include "ctl/doctor/nodes/nodes_facts.h"

namespace ddprun::doctor {

inline constexpr std::size_t kTokenBytes = 32;

struct Peer {
  int node_rank = 0;
  Endpoint endpoint;  // its host is numeric
};

// Connects to all peers, several at a time, each for `patience` at most. Returns for each whether
// it answers, and what its clock says (four time stamps), in the order of `peers`. After the
// deadline the rest are "not tried".
std::vector<Greeting> greet_all(const std::vector<Peer>& peers, const std::string& token,
                                std::chrono::milliseconds patience, Deadline deadline);

struct PairLimits {
  std::uint64_t num_bytes = 64 << 20;            // for each direction
  std::chrono::nanoseconds time{1'000'000'000};  // for each direction
  int mtu = 0;                                   // of this node's interface; 0: not known
};

// Measures round trips of one byte, then the bandwidth of one direction, then of the other. Also
// checks whether unfragmented frames as large as the MTU arrive. A failure is in the result's
// `failure`.
PairMeasure measure_pair(int own_rank, const Peer& peer, const std::string& token,
                         const PairLimits& limits, Deadline deadline);

// Answers the other nodes' measurements on a thread of its own, since this node's own measurements
// block.
class PeerServer {
 public:
  // Listens on a free port of all interfaces, for TCP and UDP, in `address`' family. `token` has
  // kTokenBytes; requests without it get no answer. Throws Error.
  PeerServer(const std::string& address, std::string token, int node_rank);
  ~PeerServer();  // ends the thread at once
  PeerServer(const PeerServer&) = delete;
  PeerServer& operator=(const PeerServer&) = delete;

  std::uint16_t port() const { return port_; }

 private:
  const std::string token_;
  const int node_rank_;
  UniqueFd listener_, datagrams_;
  Pipe stop_ = make_pipe();  // when its write end closes, the thread ends
  std::uint16_t port_ = 0;
  std::thread thread_;
};

}  // namespace ddprun::doctor
