// SPDX-License-Identifier: Apache-2.0
// A model that DistributedDataParallel has taken over: the ranks have compared it, and its tensors
// are sorted by how their gradients are treated. Heavy: includes ATen.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
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

// A parameter's number counts those whose gradients are averaged in buckets, without the sparse
// ones.
class WrappedModel {
 public:
  // Compares the ranks' models and options. Collective. Error(kInvalidArgument), the same on every
  // rank, names the first rank that differs from rank 0. Options or parameters that can't be cause
  // an error on this rank alone.
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

  // Sends root's parameters, and its buffers if asked, to every rank. Collective.
  void send_state(int root, bool with_buffers) const;
  // Sends root's buffers to every rank. Collective.
  void send_buffers(int root);

  // Removes the gradients of all parameters, ignored ones too.
  void forget_gradients() const;

  // Throw Error(kInvalidArgument) naming a parameter that would be trained but not averaged. The
  // first function finds one that was frozen, the second one that was added or replaced since the
  // model was wrapped. That of a layer that is new, too, is found in the calls 1, 2, 4, 8, …, and
  // in each 256th.
  void check_frozen() const;
  void check_nothing_is_new();

 private:
  bool has_known_parameters() const;
  void look_at_all_parameters();
  void sort_out(const std::vector<NamedTensor>& parameters, const std::set<const void*>& sparse);

  // Constant after construction.
  const torch::nn::Module& module_;
  Communicator& communicator_;
  const DdpOptions options_;
  std::vector<at::Tensor> parameters_;
  std::vector<ParameterSpec> specs_;
  std::vector<NamedTensor> sparse_;
  std::vector<at::Tensor> ignored_;  // ignored parameters: only their gradients are forgotten
  std::vector<at::Tensor> buffers_;
  std::vector<at::Tensor> state_;  // all parameters, then all buffers, which are sent
  c10::Device device_ = c10::kCPU;

  // Parameters that required no gradient: those as wrapped, then those that the last look found.
  std::vector<NamedTensor> frozen_;
  std::size_t num_frozen_as_wrapped_ = 0;

  std::optional<TensorBroadcast> buffer_broadcast_;  // from the first forward on
  std::uint64_t num_looks_ = 0;                      // counts check_nothing_is_new()
  // As of look_at_all_parameters(): the layers below the module, which may be gone from it since,
  // and the identities of the parameters that the module and each of these own.
  std::vector<std::shared_ptr<torch::nn::Module>> layers_;
  std::vector<const void*> owned_;
};

}  // namespace ddprun::torch_adapter
