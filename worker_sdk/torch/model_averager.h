// SPDX-License-Identifier: Apache-2.0
// Periodic averaging of a model (local SGD, docs/local-sgd.md): every rank steps alone, and from
// time to time all ranks take the mean of their tensors. Heavy: includes ATen.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "worker_sdk/core/communicator.h"
#include "worker_sdk/torch/named_tensor.h"

namespace ddprun {

struct AveragerOptions {
  // Tensors are copied into one block and averaged in pieces of at least this many bytes. While one
  // piece is sent, the next one is copied.
  std::size_t bucket_bytes = std::size_t{4} << 20;
};

// Used by one thread. The tensors keep their memory: an average is copied into them.
class ModelAverager {
 public:
  // `tensors` are parameters, or an optimiser's running averages. They are dense, of float32,
  // float64, float16 or bfloat16, on the one device of `communicator`'s buffers. Names, sizes and
  // dtypes are the same on all ranks. Collective. Allocates as many bytes as they have.
  // `communicator` outlives this object. Throws Error(kUnsupported) naming a tensor of another
  // dtype; also the communicator's errors.
  ModelAverager(const std::vector<NamedTensor>& tensors, Communicator& communicator,
                const AveragerOptions& options = {});
  ~ModelAverager();
  ModelAverager(const ModelAverager&) = delete;
  ModelAverager& operator=(const ModelAverager&) = delete;

  // Makes each tensor the mean over all ranks, bit-equal on all. Collective.
  void average();

  // The same in two parts, with training steps between them. At start() the mean differs from this
  // rank's tensors. finish() adds that difference to each tensor, so those steps are kept. Costs a
  // second copy. Afterwards the ranks are not equal, but nearer. Collective, in pairs; else
  // Error(kInvalidArgument).
  void start();
  void finish();
  bool is_under_way() const;

  // Returns the bytes that this rank gave to collectives so far.
  std::uint64_t sent_bytes() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ddprun
