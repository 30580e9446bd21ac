// SPDX-License-Identifier: Apache-2.0
// Averages gradients once, after they are complete. It is for data parallelism beside a pipeline,
// whose order of forwards and backwards DistributedDataParallel does not know.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "worker_sdk/core/communicator.h"

namespace ddprun {

// Makes each parameter's gradient the average over the ranks. Collective. Parameters have the same
// order, shapes and dtypes on every rank. An undefined gradient counts as zeros, and is defined
// afterwards. Meanwhile it takes the gradients' size once more in memory. It moves them in buckets
// of the size that suits the backend. Throws Error(kUnsupported) for dtypes that can't be averaged,
// and the communicator's errors.
void average_gradients(const std::vector<at::Tensor>& parameters, Communicator& communicator);

namespace torch_adapter {

// The same for any op. Parameters come in the same order on every rank. average_gradients() and
// sum_gradients() are made of it.
void reduce_gradients(const std::vector<at::Tensor>& parameters, ReduceOp op,
                      Communicator& communicator);

}  // namespace torch_adapter

}  // namespace ddprun
