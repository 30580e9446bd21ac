// SPDX-License-Identifier: Apache-2.0
// How a call is executed after its arguments are checked: on one node, on several, and the parts
// common to both. One call at a time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "worker_sdk/core/host/node_group.h"
#include "worker_sdk/core/host/reduce_kernels.h"
#include "worker_sdk/core/host/shared_memory.h"

namespace ddprun::host {

class Ring;

// Number of elements that makes the ranks' slices of a buffer begin on different cache lines.
inline constexpr std::size_t kGranule = 64;

inline std::byte* bytes_of(const TensorView& view) { return static_cast<std::byte*>(view.data); }

inline std::size_t elements_per_block(DType dtype) {
  return kReduceBlockBytes / size_of(accumulator_of(dtype));
}

// Reduces any length block by block: combines a block, finishes it and hands it on while it is in
// the first-level cache. For each block of [0, count) it reduces sources[i] (in the order of i) and
// finishes the block for `world_size`. Then it calls deliver(block bytes, first byte offset,
// num_bytes). The block is scratch. `deliver` may overwrite sources, at the offsets it is given.
template <typename Deliver>
void reduce_blocks(const std::vector<const std::byte*>& sources, std::size_t count, DType dtype,
                   ReduceOp op, int world_size, const Deliver& deliver) {
  alignas(64) std::byte accumulated[kReduceBlockBytes];
  alignas(64) std::byte narrowed[kReduceBlockBytes / 2];
  const std::size_t element = size_of(dtype);
  const bool widens = accumulator_of(dtype) != dtype;
  std::vector<const void*> at(sources.size());
  for (std::size_t begin = 0; begin < count; begin += elements_per_block(dtype)) {
    const std::size_t length = std::min(elements_per_block(dtype), count - begin);
    for (std::size_t i = 0; i < sources.size(); ++i) at[i] = sources[i] + begin * element;
    reduce_block(accumulated, at.data(), at.size(), length, dtype, op);
    std::byte* const block = widens ? narrowed : accumulated;
    finish_block(block, accumulated, length, dtype, op, world_size);
    deliver(block, begin * element, length * element);
  }
}

// Keeps the ranks of a node in step: they enter a call together (and compare it), and count pieces.
class NodeSteps {
 public:
  explicit NodeSteps(NodeGroup& group) : group_(group) {}

  // Waits for all local ranks to enter this call. Data that any rank wrote before to the one-shot
  // slot of the call's parity is readable afterwards. Throws Error(kProtocol) on all ranks of the
  // node if their calls differ.
  void enter(const Call& call, const std::optional<Arena::Place>& place = std::nullopt);
  static std::uint32_t parity(const Call& call) { return call.header.sequence & 1; }

  // Returns, after enter(), what another rank published.
  const PublishedCall& published(const Call& call, int local) {
    return group_.control(local).calls[parity(call)];
  }

  // Tell how many pieces this rank has copied in and added up, over all calls. `piece` counts from
  // 1 in this call.
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
  // Ends the count of a call that had this many pieces; both flags of every rank reach these
  // values.
  void finish_pieces(std::uint32_t num_copied, std::uint32_t num_reduced) {
    copied_ += num_copied;
    reduced_ += num_reduced;
  }

  // Waits until all local ranks are done with each other's buffers of this call.
  void leave_buffers(const Call& call) {
    reduced(1);
    wait_all_reduced(1, call);
    finish_pieces(0, 1);
  }

  // Waits until all local ranks have come here.
  void sync(const Call& call) {
    copied(1);
    wait_all_copied(1, call);
    finish_pieces(1, 0);
  }

 private:
  NodeGroup& group_;
  std::uint32_t copied_ = 0;  // the flags' values before the current call
  std::uint32_t reduced_ = 0;
};

class Collectives {
 public:
  virtual ~Collectives() = default;

  // The Communicator's operations, blocking, for size() > 1 and buffers on the CPU. Each throws
  // Error(kTimeout, kPeerLost, kAborted), and Error(kProtocol) if ranks made different calls.
  virtual void all_reduce(const Call& call, const TensorView& buffer, ReduceOp op) = 0;
  virtual void broadcast(const Call& call, const TensorView& buffer, int root) = 0;
  virtual void all_gather(const Call& call, const TensorView& input, const TensorView& output) = 0;
  virtual void reduce_scatter(const Call& call, const TensorView& input, const TensorView& output,
                              ReduceOp op) = 0;
  virtual void barrier(const Call& call) = 0;
};

// Makes collectives among the ranks of one node, through shared memory. Calls up to kOneShotBytes
// use one slot and one flag. Larger ones need no copy if every rank's buffer lies in the arena;
// else they use a double-buffered staging pipeline. The references outlive the result.
std::unique_ptr<Collectives> make_node_collectives(NodeGroup& group, NodeSteps& steps,
                                                   const Arena& arena);

// Makes collectives among ranks on several nodes: in the node through shared memory, between nodes
// over the carriers' rings, in the node again. The nodes may have different numbers of ranks.
// `ring` is null if this rank is no carrier. The references outlive the result.
std::unique_ptr<Collectives> make_cluster_collectives(NodeGroup& group, NodeSteps& steps,
                                                      std::unique_ptr<Ring> ring);

}  // namespace ddprun::host
