// SPDX-License-Identifier: Apache-2.0
// Collectives in which ranks send each other different parts, as groups of messages
// (Communicator::group), which is how NCCL's users make them:
// https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/usage/p2p.html
//
// For every backend. Every rank of the communicator calls the same function. Buffers share no
// memory. Empty parts are not sent, so both sides must agree on which these are. Errors are
// Communicator's; kInvalidArgument, too, for counts that don't fit.
#pragma once

#include <vector>

#include "worker_sdk/core/communicator.h"

namespace ddprun {

// inputs[r] goes to rank r, and outputs[r] comes from it: size() of each. outputs[r].count is that
// of rank r's part for this rank.
WorkPtr all_to_all(Communicator& communicator, const std::vector<TensorView>& inputs,
                   const std::vector<TensorView>& outputs, const CallOptions& options = {});

// The same with size() equal parts of `input` and of `output`, in rank order.
WorkPtr all_to_all(Communicator& communicator, const TensorView& input, const TensorView& output,
                   const CallOptions& options = {});

// output.count = size() * input.count on `root`, where rank r's input lands at r * input.count. The
// others' `output` is not looked at.
WorkPtr gather(Communicator& communicator, const TensorView& input, const TensorView& output,
               int root, const CallOptions& options = {});

// input.count = size() * output.count on `root`, of which rank r gets the part from r *
// output.count on. The others' `input` is not looked at.
WorkPtr scatter(Communicator& communicator, const TensorView& input, const TensorView& output,
                int root, const CallOptions& options = {});

// all_reduce of each, started together.
WorkPtr all_reduce_each(Communicator& communicator, const std::vector<TensorView>& buffers,
                        ReduceOp op, const CallOptions& options = {});

}  // namespace ddprun
