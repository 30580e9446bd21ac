// SPDX-License-Identifier: Apache-2.0
// Gradients averaged once, after they are complete. That is for data parallel beside a pipeline,
// whose forwards and backwards take turns in a way that DistributedDataParallel does not know.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "worker_sdk/core/communicator.h"

namespace ddprun {

// Collective: after it each parameter's gradient is the average over the ranks. Parameters in the
// same order, of the same shapes and dtypes on every rank. A gradient that is undefined counts as
// zeros and is defined then. Takes the gradients' size once more in memory meanwhile, and moves
// them in buckets of the size that suits the backend. Throws Error(kUnsupported) for dtypes that
// can't be averaged, and the communicator's errors.
void average_gradients(const std::vector<at::Tensor>& parameters, Communicator& communicator);

namespace torch_adapter {

// The same for any op, in the same order of parameters: what average_gradients() and
// sum_gradients() are.
void reduce_gradients(const std::vector<at::Tensor>& parameters, ReduceOp op,
                      Communicator& communicator);

}  // namespace torch_adapter

}  // namespace ddprun
