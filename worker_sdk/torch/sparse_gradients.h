// SPDX-License-Identifier: Apache-2.0
// Averages sparse gradients, as embeddings have them, over all ranks. Heavy: includes ATen.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "worker_sdk/core/communicator.h"

namespace torch::nn {
class Module;
}

namespace ddprun::torch_adapter {

// Returns whether `layer` is an Embedding or EmbeddingBag with sparse(true): the gradient of its
// weight, its only parameter, is then sparse.
bool has_sparse_gradient(const torch::nn::Module& layer);

// Sets the parameter's gradient to `factor` times the sum over the ranks, coalesced, with the same
// indices on all. Collective. An undefined gradient counts as zeros, and stays undefined if no rank
// has one. The result is dense on all ranks if it is dense on one of them (a tied weight). Takes
// memory for all ranks' values, each rank's padded to the longest. Throws Error(kUnsupported)
// naming `name` for a gradient that isn't plain (check_plain_gradient()), and the communicator's
// errors.
void average_sparse_gradient(const at::Tensor& parameter, const std::string& name, double factor,
                             Communicator& communicator);

}  // namespace ddprun::torch_adapter
