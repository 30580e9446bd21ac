// SPDX-License-Identifier: Apache-2.0
// Where connections of agents wait until they have proved that they have the token: nothing that
// they say reaches anybody before. io thread only.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "rendezvous/daemon/newcomers.h"
#include "rendezvous/membership/frame_stream.h"
#include "rendezvous/security/proof.h"

namespace ddprun::rendezvous {

class ProofGate : public std::enable_shared_from_this<ProofGate> {
 public:
  using Frames = std::shared_ptr<membership::FrameStream>;
  struct Options {
    std::chrono::milliseconds timeout{10'000};  // upgrade → proof
  };
  using Admitted = std::function<void(const Frames&)>;

  ProofGate(boost::asio::io_context& io, Options options);

  // An upgraded stream, not started, that was told the challenge of `proof`.
  void take(const Frames& frames, std::unique_ptr<security::RendezvousProof> proof,
            Newcomer newcomer, Admitted admitted);
  void stop();  // closes what waits; no call follows
  std::size_t num_waiting() const { return waiting_.size(); }

 private:
  struct Waiting {
    Frames frames;  // second owner: its operations
    std::unique_ptr<security::RendezvousProof> proof;
    Newcomer newcomer;
    std::string peer;  // ADDRESS:PORT
    Admitted admitted;
    std::unique_ptr<boost::asio::steady_timer> timer;
  };

  void received(std::uint64_t number, std::string_view frame);
  void drop(std::uint64_t number, const std::string& reason, const std::string& reply = "");

  Options options_;
  boost::asio::io_context& io_;
  std::map<std::uint64_t, Waiting> waiting_;  // oldest first
  std::uint64_t next_number_ = 0;
  bool is_stopped_ = false;
};

}  // namespace ddprun::rendezvous
