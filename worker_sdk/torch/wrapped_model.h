// SPDX-License-Identifier: Apache-2.0
// A model that DistributedDataParallel has taken over: the ranks have compared it, and its tensors
// are sorted by what becomes of their gradients. Heavy: includes ATen.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "worker_sdk/ddp/bucket_plan.h"
#include "worker_sdk/ddp/ddp_rules.h"
#include "worker_sdk/torch/distributed_data_parallel.h"
#include "worker_sdk/torch/named_tensor.h"
#include "worker_sdk/torch/tensor_exchange.h"

namespace ddprun::torch_adapter {

// Parameters are numbered: those whose gradients are averaged in buckets, without the sparse ones.
class WrappedModel {
 public:
  // Collective: compares the ranks' models and options. Error(kInvalidArgument), the same on every
  // rank, names the first rank that differs from rank 0. Errors of this rank alone: options or
  // parameters that can't be.
  WrappedModel(const torch::nn::Module& module, Communicator& communicator,
               const DdpOptions& options);

  Communicator& communicator() const { return communicator_; }
  const DdpOptions& options() const { return options_; }
  UsageMode usage_mode() const;
  c10::Device device() const { return device_; }

  // The parameters, by number.
  const std::vector<at::Tensor>& parameters() const { return parameters_; }
  const std::vector<ParameterSpec>& specs() const { return specs_; }
  const std::string& name(std::size_t index) const { return specs_[index].name; }
  std::vector<std::string> names() const;

  // Parameters whose gradients are sparse: in no bucket.
  const std::vector<NamedTensor>& sparse() const { return sparse_; }

  // Collective. After: every rank has root's parameters.
  void send_state(int root, bool with_buffers) const;
  // Collective. After: every rank has root's buffers.
  void send_buffers(int root);

  // No parameter has a gradient, an ignored one neither.
  void forget_gradients() const;

  // Error(kInvalidArgument) names a parameter that would be trained, yet not averaged. The first
  // was frozen when it was wrapped, the second was added or replaced since.
  void check_frozen() const;
  void check_nothing_is_new();

 private:
  void sort_out(const std::vector<NamedTensor>& parameters, const std::set<const void*>& sparse);

  // Constant after construction.
  const torch::nn::Module& module_;
  Communicator& communicator_;
  const DdpOptions options_;
  std::vector<at::Tensor> parameters_;
  std::vector<ParameterSpec> specs_;
  std::vector<NamedTensor> sparse_;
  std::vector<NamedTensor> frozen_;  // parameters that require no gradient
  std::vector<at::Tensor> ignored_;  // parameters: only their gradients are forgotten
  std::vector<at::Tensor> buffers_;
  std::vector<at::Tensor> state_;  // all parameters, then all buffers, that are sent
  c10::Device device_ = c10::kCPU;

  std::optional<TensorBroadcast> buffer_broadcast_;  // from the first forward on
  int num_looks_ = 0;                                // check_nothing_is_new()
};

}  // namespace ddprun::torch_adapter
