// SPDX-License-Identifier: Apache-2.0
// A carrier's place in its ring between the nodes. It sends to the next node and receives from the
// previous one, over several sockets, in chunks. A chunk is passed on as soon as it has been
// received and reduced, so all steps of a collective overlap. One call at a time.
#pragma once

#include <vector>

#include "worker_sdk/core/host/call.h"
#include "worker_sdk/core/host/node_group.h"
#include "worker_sdk/core/host/operation_io.h"

namespace ddprun::host {

class Ring {
 public:
  struct Neighbour {
    int rank = 0;
    std::vector<UniqueFd> sockets;
  };

  // `node_index` of `num_nodes`; every carrier has the same number of sockets and chunk size.
  Ring(NodeGroup& group, Neighbour next, Neighbour previous, std::size_t chunk_bytes);

  // `blocks` are byte ranges of `base`, one per node, the same on every carrier of the ring. After
  // reduce_scatter, block node_index holds op over all nodes' blocks, summed in ring order. After
  // all_gather, every block holds its node's data. Both together are all_reduce. With `wire`
  // float16 or bfloat16, float32 elements travel in that type, and incoming ones are added as
  // float32. A sum is rounded before each hop. The results are rounded to that type, the same on
  // every carrier. Results are divided by `divisor`: with a narrower wire before elements travel,
  // or sums of float16 could be infinite; else when a block is complete.
  void all_reduce(const Call& call, std::byte* base, const std::vector<Range>& blocks, DType dtype,
                  ReduceOp op, DType wire, int divisor = 1);
  void reduce_scatter(const Call& call, std::byte* base, const std::vector<Range>& blocks,
                      DType dtype, ReduceOp op);
  void all_gather(const Call& call, std::byte* base, const std::vector<Range>& blocks);

  // Sends `size_bytes` at `data` from node `root_node` along the ring to all others.
  void broadcast(const Call& call, std::byte* data, std::size_t size_bytes, int root_node);

 private:
  struct Transfer {
    std::byte* data = nullptr;
    std::size_t size_bytes = 0;
    bool reduce = false;  // to receive: combined with what is there
    bool whole = false;   // to receive: afterwards the sum is of all nodes
    bool own = false;     // to send: this node's data alone
  };
  // This node's transfers of one operation. Send i may start when receive i − num_free_sends is
  // done.
  struct Flow {
    std::vector<Transfer> sends;
    std::vector<Transfer> receives;
    std::size_t num_free_sends = 0;
    DType dtype = DType::kUInt8;
    DType wire = DType::kUInt8;  // the type that elements travel as
    ReduceOp op = ReduceOp::kSum;
    int divisor = 1;
  };
  // One socket's position in its share of the transfers: every num_sockets-th, after a call header.
  struct Lane {
    std::size_t transfer = 0;
    std::size_t offset = 0;
    std::size_t header_bytes = 0;
    bool packed = false;  // to send: the transfer is packed in the socket's buffer
    CallHeader header{};
  };

  void add(std::vector<Transfer>& list, std::byte* base, Range bytes, const Transfer& kind) const;
  void add_reduce_scatter(Flow& flow, std::byte* base, const std::vector<Range>& blocks) const;
  void add_all_gather(Flow& flow, std::byte* base, const std::vector<Range>& blocks) const;
  void run(const Call& call, Flow& flow);
  bool advance_send(const Call& call, const Flow& flow, std::size_t socket);
  bool advance_receive(const Call& call, const Flow& flow, std::size_t socket);
  void show_header();

  bool may_send(const Flow& flow, std::size_t transfer) const {
    return transfer < flow.num_free_sends || received_[transfer - flow.num_free_sends];
  }

  static std::size_t wire_bytes(const Flow& flow, const Transfer& transfer) {
    return transfer.size_bytes / size_of(flow.dtype) * size_of(flow.wire);
  }

  const std::byte* packed(const Flow& flow, const Transfer& transfer, std::size_t socket);
  static void pack(const Flow& flow, const Transfer& transfer, std::byte* to);
  static void take_in(const Flow& flow, const Transfer& transfer, std::byte* received);
  static void take_in_narrow(const Flow& flow, const Transfer& transfer, std::byte* received);
  std::size_t num_sockets() const { return next_.sockets.size(); }

  // Constant after construction.
  NodeGroup& group_;
  OperationIo io_;
  const Neighbour next_;
  const Neighbour previous_;
  const std::size_t chunk_bytes_;
  const int node_index_;
  const int num_nodes_;

  // State of the flow that runs.
  std::vector<Lane> send_lanes_;
  std::vector<Lane> receive_lanes_;
  std::vector<bool> received_;
  std::vector<std::vector<std::byte>> scratch_;  // by socket: a chunk before it is reduced
  std::vector<std::vector<std::byte>> packed_;   // by socket: a chunk as it travels
};

}  // namespace ddprun::host
