// SPDX-License-Identifier: Apache-2.0
// How a call is executed, once its arguments are checked: on one node (NodeCollectives) or on
// several (ClusterCollectives). One call at a time.
#pragma once

#include "worker_sdk/core/host/call.h"

namespace ddprun::host {

// Elements: the ranks' slices of a buffer begin on cache lines of their own.
inline constexpr std::size_t kGranule = 64;

inline std::byte* bytes_of(const TensorView& view) { return static_cast<std::byte*>(view.data); }

class Collectives {
 public:
  virtual ~Collectives() = default;

  // The Communicator's operations, blocking, for size() > 1 and buffers on the CPU. Each throws
  // Error(kTimeout, kPeerLost, kAborted), and Error(kProtocol) when ranks made different calls.
  virtual void all_reduce(const Call& call, const TensorView& buffer, ReduceOp op) = 0;
  virtual void broadcast(const Call& call, const TensorView& buffer, int root) = 0;
  virtual void all_gather(const Call& call, const TensorView& input, const TensorView& output) = 0;
  virtual void reduce_scatter(const Call& call, const TensorView& input, const TensorView& output,
                              ReduceOp op) = 0;
  virtual void barrier(const Call& call) = 0;
};

}  // namespace ddprun::host
