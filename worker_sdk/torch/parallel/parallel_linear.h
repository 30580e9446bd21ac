// SPDX-License-Identifier: Apache-2.0
// torch::nn::Linear, shared by the ranks of a group: by output features, or by input features. A
// column layer's output is a row layer's input; the pair needs one sum over the group, at its end
// (docs/tensor-parallel.md).
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "worker_sdk/core/communicator.h"
#include "worker_sdk/torch/parallel/sharded_layer.h"

namespace ddprun {

// The common base of the parallel layers.
class ParallelLayer : public torch::nn::Module, public ShardedLayer {
 public:
  // Copies this rank's parts from a whole layer's weight and bias (undefined if there is none). Not
  // collective. Error(kInvalidArgument), without effect: another shape.
  void load_full(const at::Tensor& full_weight, const at::Tensor& full_bias);

  // Return the whole layer's weight and bias, on every rank, without a graph. Collective.
  at::Tensor full_weight();
  at::Tensor full_bias();

  std::vector<ShardedParameter> sharded_parameters() const override;

  at::Tensor weight, bias;

 protected:
  // The group shares the weight along `shared_dim`. 0: it shares the bias, too; 1: each rank has
  // the whole bias. `kind` is for messages.
  ParallelLayer(const char* kind, std::int64_t shared_dim, Communicator& group)
      : group_(group), kind_(kind), shared_dim_(shared_dim) {}

  // Makes parts with undefined values. `bias_size` 0: there is no bias.
  void make_parts(at::IntArrayRef weight_sizes, std::int64_t bias_size);
  // Returns the bias in the form in which LibTorch's functions take one that may be missing.
  std::optional<at::Tensor> given_bias() const;

  Communicator& group_;

 private:
  const char* const kind_;
  const std::int64_t shared_dim_;
};

// `weight` and `bias` are this rank's parts of what a torch::nn::Linear of the whole size draws.
// Every rank draws the whole layer and keeps its part. So with the same seed on all ranks a group
// of any size begins with the same model, bit for bit. During construction a layer takes the
// memory of the whole layer. `draw` false: the weights have undefined values until load_full().
//
// Forward takes any number of leading dimensions and is collective. Within an Autocast it computes
// in the Autocast's type. After backward, gradients of parts are complete. So is the gradient of
// the row layer's bias; bias and gradient are the same on all ranks. `group` outlives the layer and
// its graphs. Errors: tensor_parallel.h's. A group of one computes what torch::nn::Linear does.
// clone() is not offered.

struct ColumnParallelOptions {
  std::int64_t in_features = 0, out_features = 0;  // the whole layer's
  bool bias = true;
  bool gather_output = false;  // every rank gets the whole output instead of its part
  // The input is this rank's part of a sequence, along the first dimension; the output is the whole
  // sequence's. The input's gradient is then of the part, too.
  bool sequence_parallel = false;
  bool draw = true;
};

// The weight is out_features / size × in_features. The input is the same on every rank (or its part
// of a sequence); the output is this rank's part of the features.
class ColumnParallelLinearImpl : public ParallelLayer {
 public:
  // Not collective. Error(kInvalidArgument): sizes that are not positive, or that the group can't
  // share evenly.
  ColumnParallelLinearImpl(const ColumnParallelOptions& options, Communicator& group);

  at::Tensor forward(const at::Tensor& input);

 private:
  const ColumnParallelOptions options_;
};
TORCH_MODULE(ColumnParallelLinear);

struct RowParallelOptions {
  std::int64_t in_features = 0, out_features = 0;  // the whole layer's
  bool bias = true;
  bool input_is_parallel = true;  // false: the input is whole, and the layer takes its part
  // The output is this rank's part of the sequence, along the first dimension.
  bool sequence_parallel = false;
  bool draw = true;
};

// The weight is out_features × in_features / size. Every rank has the whole bias, which is added
// once, after the sum.
class RowParallelLinearImpl : public ParallelLayer {
 public:
  RowParallelLinearImpl(const RowParallelOptions& options, Communicator& group);

  at::Tensor forward(const at::Tensor& input);

 private:
  const RowParallelOptions options_;
};
TORCH_MODULE(RowParallelLinear);

}  // namespace ddprun
