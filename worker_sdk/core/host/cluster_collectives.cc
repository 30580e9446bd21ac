// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/host/collectives.h"
#include "worker_sdk/core/host/ring.h"

namespace ddprun::host {
namespace {

class ClusterCollectives final : public Collectives {
 public:
  ClusterCollectives(NodeGroup& group, NodeSteps& steps, std::unique_ptr<Ring> ring)
      : group_(group), steps_(steps), ring_(std::move(ring)) {}

  void all_reduce(const Call& call, const TensorView& buffer, ReduceOp op) override {
    const DType wide = accumulator_of(buffer.dtype);
    const std::size_t element = size_of(buffer.dtype);
    if (topology().max_ranks_per_node() == 1 && wide == buffer.dtype) {
      // No node has anything to share inside it: the ring works on the caller's buffer.
      steps_.enter(call);
      return ring_->all_reduce(call, bytes_of(buffer), share(even_blocks(buffer.count), element),
                               buffer.dtype, op, call.header.wire,
                               op == ReduceOp::kAverage ? topology().size() : 1);
    }
    // Half precision is divided before it travels, or sums of float16 could be infinite.
    const bool divides_first = wide != buffer.dtype && op == ReduceOp::kAverage;
    const ReduceOp rest = divides_first ? ReduceOp::kSum : op;
    const std::size_t piece_count = largest_piece(buffer.dtype);
    for (std::size_t first = 0; first < buffer.count; first += piece_count) {
      const std::size_t count = std::min(piece_count, buffer.count - first);
      std::byte* const user = bytes_of(buffer) + first * element;
      std::byte* const region = next_region();
      if (group_.num_local() > 1) copy_bytes(own_staging(), user, count * element);
      meet(call, first == 0);
      reduce_in_node(region, user, count, buffer.dtype, op, divides_first ? topology().size() : 1);
      steps_.sync(call);
      if (ring_) {
        ring_->all_reduce(call, region, share(even_blocks(count), size_of(wide)), wide, rest,
                          buffer.dtype);
      }
      steps_.sync(call);
      copy_out(user, region, count, buffer.dtype, rest);
    }
  }

  void broadcast(const Call& call, const TensorView& buffer, int root) override {
    const std::size_t total = buffer.size_bytes();
    const int root_node = topology().node_index_of(root);
    const bool here = root_node == topology().node_index();
    for (std::size_t offset = 0; offset < total; offset += kRegionBytes) {
      const std::size_t length = std::min(kRegionBytes, total - offset);
      std::byte* const region = next_region();
      if (root == topology().rank()) copy_bytes(region, bytes_of(buffer) + offset, length);
      meet(call, offset == 0);
      if (ring_) {
        const Range own = share({{0, length}}, 1).front();
        ring_->broadcast(call, region + own.begin, own.size(), root_node);
      }
      if (!here) steps_.sync(call);
      if (root != topology().rank()) copy_bytes(bytes_of(buffer) + offset, region, length);
    }
  }

  void all_gather(const Call& call, const TensorView& input, const TensorView& output) override {
    const auto size = static_cast<std::size_t>(topology().size());
    const std::size_t total = input.size_bytes();
    const std::size_t piece = std::max<std::size_t>(1, kRegionBytes / size);
    for (std::size_t offset = 0; offset < total; offset += piece) {
      const std::size_t length = std::min(piece, total - offset);
      std::byte* const region = next_region();
      copy_bytes(region + topology().position_of(topology().rank()) * length,
                 bytes_of(input) + offset, length);
      meet(call, offset == 0);
      if (ring_) ring_->all_gather(call, region, share(node_blocks(length), 1));
      steps_.sync(call);
      for (int rank = 0; rank < topology().size(); ++rank) {
        copy_bytes(bytes_of(output) + static_cast<std::size_t>(rank) * total + offset,
                   region + topology().position_of(rank) * length, length);
      }
    }
  }

  void reduce_scatter(const Call& call, const TensorView& input, const TensorView& output,
                      ReduceOp op) override {
    const auto size = static_cast<std::size_t>(topology().size());
    const DType wide = accumulator_of(input.dtype);
    const std::size_t element = size_of(input.dtype);
    const std::size_t piece_count = std::max<std::size_t>(1, largest_piece(input.dtype) / size);
    for (std::size_t first = 0; first < output.count; first += piece_count) {
      const std::size_t count = std::min(piece_count, output.count - first);
      std::byte* const region = next_region();
      for (int rank = 0; rank < topology().size(); ++rank) {
        copy_bytes(
            own_staging() + topology().position_of(rank) * count * element,
            bytes_of(input) + (static_cast<std::size_t>(rank) * output.count + first) * element,
            count * element);
      }
      meet(call, first == 0);
      reduce_in_node(region, own_staging(), count * size, input.dtype, op);
      steps_.sync(call);
      if (ring_) {
        ring_->reduce_scatter(call, region, share(node_blocks(count), size_of(wide)), wide, op);
      }
      steps_.sync(call);
      copy_out(bytes_of(output) + first * element,
               region + topology().position_of(topology().rank()) * count * size_of(wide), count,
               output.dtype, op);
    }
  }

  // A single byte goes round. It can't come back before every node's first rank has entered, and a
  // first rank enters only with all ranks of its node.
  void barrier(const Call& call) override {
    std::byte* const region = next_region();
    steps_.enter(call);
    if (ring_) {
      ring_->all_reduce(call, region, share(even_blocks(1), 1), DType::kUInt8, ReduceOp::kMax,
                        DType::kUInt8);
    }
    steps_.sync(call);
  }

 private:
  // Returns how many elements fit the staging slot while their sums fit the region.
  static std::size_t largest_piece(DType dtype) {
    return std::min(kStagingBytes / size_of(dtype), kRegionBytes / size_of(accumulator_of(dtype)));
  }

  void meet(const Call& call, bool first) { first ? steps_.enter(call) : steps_.sync(call); }
  // Returns the node's region for the next piece. Two regions take turns: while one is copied out
  // the other may be filled.
  std::byte* next_region() { return group_.region(turn_++ & 1); }

  // Sums `count` elements of every local rank's staging slot into `region` (accumulator type); each
  // rank sums its slice and divides by `divisor`. If a rank is alone on its node, `own` replaces
  // its staging slot.
  void reduce_in_node(std::byte* region, const std::byte* own, std::size_t count, DType dtype,
                      ReduceOp op, int divisor = 1) {
    const auto num_local = static_cast<std::size_t>(group_.num_local());
    const auto self = static_cast<std::size_t>(group_.local_index());
    const Range slice = slice_of(count, self, num_local, kGranule);
    const std::size_t element = size_of(dtype), wide = size_of(accumulator_of(dtype));
    std::vector<const void*> sources(num_local);
    const std::size_t step = elements_per_block(dtype);
    for (std::size_t begin = slice.begin; begin < slice.end; begin += step) {
      for (std::size_t local = 0; local < num_local; ++local) {
        const std::byte* from = local == self ? own : group_.staging(static_cast<int>(local));
        sources[local] = from + begin * element;
      }
      const std::size_t length = std::min(step, slice.end - begin);
      reduce_block(region + begin * wide, sources.data(), num_local, length, dtype, op);
      if (divisor > 1) {
        reduce_kernels().divide(region + begin * wide, length, accumulator_of(dtype), divisor);
      }
    }
  }

  // Finishes and rounds `count` elements of `region` (accumulator type), and copies them to `to`.
  void copy_out(std::byte* to, const std::byte* region, std::size_t count, DType dtype,
                ReduceOp op) {
    if (accumulator_of(dtype) == dtype && op != ReduceOp::kAverage) {
      copy_bytes(to, region, count * size_of(dtype));
      return;
    }
    const std::size_t element = size_of(dtype), wide = size_of(accumulator_of(dtype));
    alignas(64) std::byte block[kReduceBlockBytes];  // the region is shared, so it must not change
    for (std::size_t begin = 0; begin < count; begin += elements_per_block(dtype)) {
      const std::size_t length = std::min(elements_per_block(dtype), count - begin);
      copy_bytes(block, region + begin * wide, length * wide);
      finish_block(to + begin * element, block, length, dtype, op, topology().size());
    }
  }

  // Returns this carrier's share of each block. Blocks are in elements, the result in bytes.
  std::vector<Range> share(const std::vector<Range>& blocks, std::size_t element) const {
    std::vector<Range> shares;
    for (const Range& block : blocks) {
      const Range own = slice_of(block.size(), static_cast<std::size_t>(group_.local_index()),
                                 static_cast<std::size_t>(topology().num_carriers()), kGranule);
      shares.push_back({(block.begin + own.begin) * element, (block.begin + own.end) * element});
    }
    return shares;
  }

  std::vector<Range> even_blocks(std::size_t count) const {
    std::vector<Range> blocks;
    const auto num_nodes = static_cast<std::size_t>(topology().num_nodes());
    for (std::size_t node = 0; node < num_nodes; ++node) {
      blocks.push_back(slice_of(count, node, num_nodes, kGranule));
    }
    return blocks;
  }

  // Returns the positions of each node's ranks, times `length`.
  std::vector<Range> node_blocks(std::size_t length) const {
    std::vector<Range> blocks;
    for (int node = 0; node < topology().num_nodes(); ++node) {
      const Range positions = topology().positions_of_node(node);
      blocks.push_back({positions.begin * length, positions.end * length});
    }
    return blocks;
  }

  const Topology& topology() const { return group_.topology(); }
  std::byte* own_staging() { return group_.staging(group_.local_index()); }

  NodeGroup& group_;
  NodeSteps& steps_;
  const std::unique_ptr<Ring> ring_;
  std::uint32_t turn_ = 0;
};

}  // namespace

std::unique_ptr<Collectives> make_cluster_collectives(NodeGroup& group, NodeSteps& steps,
                                                      std::unique_ptr<Ring> ring) {
  return std::make_unique<ClusterCollectives>(group, steps, std::move(ring));
}

}  // namespace ddprun::host
