// SPDX-License-Identifier: Apache-2.0
// Collectives among ranks on several nodes: in the node through shared memory, between nodes over
// the carriers' rings, in the node again. The nodes may have different numbers of ranks.
#pragma once

#include <memory>

#include "worker_sdk/core/host/collectives.h"
#include "worker_sdk/core/host/node_group.h"
#include "worker_sdk/core/host/node_steps.h"
#include "worker_sdk/core/host/ring.h"

namespace ddprun::host {

class ClusterCollectives final : public Collectives {
 public:
  // `ring` is null where this rank is no carrier.
  ClusterCollectives(NodeGroup& group, NodeSteps& steps, std::unique_ptr<Ring> ring)
      : group_(group), steps_(steps), ring_(std::move(ring)) {}

  void all_reduce(const Call& call, const TensorView& buffer, ReduceOp op) override;
  void broadcast(const Call& call, const TensorView& buffer, int root) override;
  void all_gather(const Call& call, const TensorView& input, const TensorView& output) override;
  void reduce_scatter(const Call& call, const TensorView& input, const TensorView& output,
                      ReduceOp op) override;
  void barrier(const Call& call) override;

 private:
  void meet(const Call& call, bool first) { first ? steps_.enter(call) : steps_.sync(call); }
  // The node's region for the next piece. Two take turns: while one is copied out the other may
  // be filled.
  std::byte* next_region() { return group_.region(turn_++ & 1); }
  // Sums `count` elements of every local rank's staging into `region` (accumulator type), each
  // rank its slice, divided by `divisor`. `own` stands for the only rank's staging where it is
  // alone.
  void reduce_in_node(std::byte* region, const std::byte* own, std::size_t count, DType dtype,
                      ReduceOp op, int divisor = 1);
  // `size_bytes` from `region` (accumulator type), ended and rounded, to `to`.
  void copy_out(std::byte* to, const std::byte* region, std::size_t count, DType dtype,
                ReduceOp op);
  // This carrier's share of each block; blocks in elements, result in bytes.
  std::vector<Range> share(const std::vector<Range>& blocks, std::size_t element) const;
  std::vector<Range> even_blocks(std::size_t count) const;
  // Positions of each node's ranks, times `length`.
  std::vector<Range> node_blocks(std::size_t length) const;

  const Topology& topology() const { return group_.topology(); }
  std::byte* own_staging() { return group_.staging(group_.local_index()); }

  NodeGroup& group_;
  NodeSteps& steps_;
  const std::unique_ptr<Ring> ring_;
  std::uint32_t turn_ = 0;
};

}  // namespace ddprun::host
