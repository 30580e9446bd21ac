// SPDX-License-Identifier: Apache-2.0
// Tensor parallelism (Shoeybi et al., Megatron-LM, 2019; docs/tensor-parallel.md). The ranks of a
// group each hold a part of a layer and work on one batch together. These functions bring a tensor
// into such a region and out of it, with its gradients; parallel_linear.h and parallel_conv.h have
// the layers.
//
// All are collective over `group`, in forward or in backward or both. Every rank calls the same
// ones in the same order with tensors of the same sizes. A tensor requires a gradient on all ranks
// or on none. There are first derivatives only (Error(kUnsupported) for create_graph). `group`
// outlives the graph. A group of one rank returns the tensor itself. Dtypes are float32, float64,
// float16, bfloat16 (else Error(kUnsupported)). Also the communicator's errors, from forward or
// from backward.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "worker_sdk/core/communicator.h"

namespace ddprun {

// | function                 | each rank has  → gets          | backward                        |
// |--------------------------|--------------------------------|---------------------------------|
// | copy_to_region           | the same       → the same      | sum over the ranks              |
// | reduce_from_region       | a summand      → the sum       | the same                        |
// | scatter_to_region        | the same       → its part      | all parts                       |
// | gather_from_region       | its part       → all parts     | its part                        |
// | gather_sequence          | its part       → all parts     | its part of the sum             |
// | reduce_scatter_sequence  | a summand      → its part of the sum | all parts                 |
//
// Parts are equal pieces of one dimension in the order of ranks: of `dim` (default: the last), or
// of the first for a sequence. Error(kInvalidArgument) if the size is no multiple of the group's.
// With gather_from_region every rank must go on with the same computation, with gather_sequence
// each with its part of a layer.
at::Tensor copy_to_region(const at::Tensor& tensor, Communicator& group);
at::Tensor reduce_from_region(const at::Tensor& tensor, Communicator& group);
at::Tensor scatter_to_region(const at::Tensor& tensor, Communicator& group, std::int64_t dim = -1);
at::Tensor gather_from_region(const at::Tensor& tensor, Communicator& group, std::int64_t dim = -1);
at::Tensor gather_sequence(const at::Tensor& tensor, Communicator& group);
at::Tensor reduce_scatter_sequence(const at::Tensor& tensor, Communicator& group);

// Applies dropout to this rank's part (along `dim`) of an activation. Every rank draws for the
// whole and keeps its part. So ranks drop different elements, and their generators stay in step. On
// the CPU the result is torch::dropout's on the whole tensor, bit for bit. Not collective.
// Error(kInvalidArgument): p is not within 0 … 1.
at::Tensor region_dropout(const at::Tensor& part, double p, bool is_training,
                          const Communicator& group, std::int64_t dim = -1);

}  // namespace ddprun
