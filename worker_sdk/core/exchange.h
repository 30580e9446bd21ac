// SPDX-License-Identifier: Apache-2.0
// Collectives in which ranks send each other different parts. They are groups of messages
// (Communicator::group), as in NCCL's manual:
// https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/usage/p2p.html
//
// They work on every backend. Every rank of the communicator calls the same function. Buffers share
// no memory. Empty parts are not sent, so both sides must agree on which these are. Errors are
// Communicator's, and kInvalidArgument for counts that don't fit.
#pragma once

#include <vector>

#include "worker_sdk/core/communicator.h"

namespace ddprun {

// inputs[r] goes to rank r, and outputs[r] comes from it; each has size() entries. outputs[r].count
// is the count of rank r's part for this rank.
WorkPtr all_to_all(Communicator& communicator, const std::vector<TensorView>& inputs,
                   const std::vector<TensorView>& outputs, const CallOptions& options = {});

// The same with size() equal parts of `input` and of `output`, in rank order.
WorkPtr all_to_all(Communicator& communicator, const TensorView& input, const TensorView& output,
                   const CallOptions& options = {});

// output.count = size() * input.count on `root`, where rank r's input lands at r * input.count.
// Other ranks' `output` is ignored.
WorkPtr gather(Communicator& communicator, const TensorView& input, const TensorView& output,
               int root, const CallOptions& options = {});

// input.count = size() * output.count on `root`; rank r gets the part that begins at r *
// output.count. Other ranks' `input` is ignored.
WorkPtr scatter(Communicator& communicator, const TensorView& input, const TensorView& output,
                int root, const CallOptions& options = {});

// Starts an all_reduce of each buffer, all together.
WorkPtr all_reduce_each(Communicator& communicator, const std::vector<TensorView>& buffers,
                        ReduceOp op, const CallOptions& options = {});

}  // namespace ddprun
