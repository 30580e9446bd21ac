// SPDX-License-Identifier: Apache-2.0
// Periodic averaging of a model (local SGD, docs/local-sgd.md): every rank steps alone, and now and
// then all take the mean of what they have. Heavy: includes ATen.
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
  // Tensors are copied into one block and averaged in pieces of at least so many bytes: while one
  // piece travels the next one is copied.
  std::size_t bucket_bytes = std::size_t{4} << 20;
};

// One thread. The tensors keep their memory: an average is copied into them.
class ModelAverager {
 public:
  // `tensors`: parameters, or an optimiser's running averages. They are dense, float32, float64,
  // float16 or bfloat16, the same names, sizes and dtypes on all ranks, on one device, where
  // `communicator` wants buffers. Collective. Allocates as many bytes as they have. `communicator`
  // outlives this object. Throws Error(kUnsupported) naming a tensor of another dtype; the
  // communicator's errors.
  ModelAverager(std::vector<NamedTensor> tensors, Communicator& communicator,
                const AveragerOptions& options = {});
  ~ModelAverager();
  ModelAverager(const ModelAverager&) = delete;
  ModelAverager& operator=(const ModelAverager&) = delete;

  // Makes each tensor the mean of all ranks', bit-equal on all. Collective.
  void average();

  // The same in two parts, with steps of the training between them. At start() the mean differs
  // from this rank's tensors. Each tensor gets that difference in finish(), so those steps are
  // kept. Costs a second copy. The ranks are not equal after it, but nearer. Collective, in pairs;
  // Error(kInvalidArgument) where they are none.
  void start();
  void finish();
  bool is_under_way() const;

  // The bytes that this rank gave to collectives so far.
  std::uint64_t sent_bytes() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ddprun
