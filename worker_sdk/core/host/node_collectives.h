// SPDX-License-Identifier: Apache-2.0
// Collectives among the ranks of one node, through shared memory. Up to kOneShotBytes: one slot,
// one flag. Above: without a copy where every rank's buffer lies in the arena, else through a
// double-buffered staging pipeline.
#pragma once

#include "worker_sdk/core/host/arena.h"
#include "worker_sdk/core/host/collectives.h"
#include "worker_sdk/core/host/node_group.h"
#include "worker_sdk/core/host/node_steps.h"

namespace ddprun::host {

class NodeCollectives final : public Collectives {
 public:
  NodeCollectives(NodeGroup& group, NodeSteps& steps, const Arena& arena)
      : group_(group), steps_(steps), arena_(arena) {}

  void all_reduce(const Call& call, const TensorView& buffer, ReduceOp op) override;
  void broadcast(const Call& call, const TensorView& buffer, int root) override;
  void all_gather(const Call& call, const TensorView& input, const TensorView& output) override;
  void reduce_scatter(const Call& call, const TensorView& input, const TensorView& output,
                      ReduceOp op) override;
  void barrier(const Call& call) override;

 private:
  void all_reduce_one_shot(const Call& call, const TensorView& buffer, ReduceOp op);
  void all_reduce_in_place(const Call& call, const std::vector<std::byte*>& buffers,
                           const TensorView& buffer, ReduceOp op);
  void all_reduce_staged(const Call& call, const TensorView& buffer, ReduceOp op);
  void reduce_scatter_staged(const Call& call, const TensorView& input, const TensorView& output,
                             ReduceOp op);

  // Every local rank's buffer, where all lie in the arena; else empty. Same answer on every rank.
  std::vector<std::byte*> arena_buffers(const Call& call, std::size_t size_bytes);
  // Staging of a rank: two input halves, two result halves.
  std::byte* input_half(int local, std::size_t piece) {
    return group_.staging(local) + (piece & 1) * kPipelinePieceBytes;
  }
  std::byte* result_half(int local, std::size_t piece) {
    return group_.staging(local) + (2 + (piece & 1)) * kPipelinePieceBytes;
  }
  int num_local() const { return group_.num_local(); }
  int me() const { return group_.local_index(); }

  NodeGroup& group_;
  NodeSteps& steps_;
  const Arena& arena_;
  static_assert(4 * kPipelinePieceBytes <= kStagingBytes);
};

}  // namespace ddprun::host
