// SPDX-License-Identifier: Apache-2.0
// The ranks of a node in step: entering a call together (and comparing it), and counting pieces.
// One call at a time.
#pragma once

#include <cstdint>
#include <optional>

#include "worker_sdk/core/host/arena.h"
#include "worker_sdk/core/host/node_group.h"

namespace ddprun::host {

class NodeSteps {
 public:
  explicit NodeSteps(NodeGroup& group) : group_(group) {}

  // Waits for all local ranks to enter this call. Data that was written to the one-shot slot of
  // the call's parity before is readable afterwards; so is every other rank's. Throws
  // Error(kProtocol) on all ranks of the node when their calls differ.
  void enter(const Call& call, const std::optional<Arena::Place>& place = std::nullopt);
  static std::uint32_t parity(const Call& call) { return call.header.sequence & 1; }

  // After enter(): what another rank published.
  const PublishedCall& published(const Call& call, int local) {
    return group_.control(local).calls[parity(call)];
  }

  // Piece counters, raised equally by every rank during a call. `piece` counts from 1 in the call.
  void copied(std::uint32_t piece) { group_.publish(&RankControl::copied, copied_ + piece); }
  void reduced(std::uint32_t piece) { group_.publish(&RankControl::reduced, reduced_ + piece); }
  void wait_all_copied(std::uint32_t piece, const Call& call) {
    group_.wait_for_all(&RankControl::copied, copied_ + piece, call);
  }
  void wait_all_reduced(std::uint32_t piece, const Call& call) {
    group_.wait_for_all(&RankControl::reduced, reduced_ + piece, call);
  }
  void wait_copied(int local, std::uint32_t piece, const Call& call) {
    group_.wait_for(group_.control(local).copied, copied_ + piece, local, call);
  }
  // Ends the count of a call that had so many pieces: both flags of every rank get there.
  void finish_pieces(std::uint32_t num_copied, std::uint32_t num_reduced) {
    copied_ += num_copied;
    reduced_ += num_reduced;
  }

  // All local ranks meet.
  void sync(const Call& call) {
    copied(1);
    wait_all_copied(1, call);
    finish_pieces(1, 0);
  }

 private:
  NodeGroup& group_;
  std::uint32_t copied_ = 0;  // flags' values before the current call
  std::uint32_t reduced_ = 0;
};

}  // namespace ddprun::host
