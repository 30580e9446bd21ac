// SPDX-License-Identifier: Apache-2.0
// PyTorch's DistributedDataParallel without its Python. The engine, c10d::Reducer, is the one in
// libtorch_cpu; it is called as torch/nn/parallel/distributed.py (PyTorch 2.15) calls it. The wheel
// lacks the headers of gloo, so the process group is one of these tests: it gathers tensors with
// Communicator::all_gather, which DistributedDataParallel's averages don't use, and ATen adds them.
#pragma once

#include <torch/torch.h>

#include <memory>
#include <utility>
#include <vector>

#include "worker_sdk/core/communicator.h"
#include "worker_sdk/torch/distributed_data_parallel.h"

namespace c10d {
class Logger;
class ProcessGroup;
class Reducer;
}  // namespace c10d

namespace ddprun::testing {

// As DdpBase, of which it has what the tests call. Tensors are on the CPU.
class PytorchDdpBase {
 public:
  struct NoSync {
    ~NoSync() { ddp.averages_ = true; }
    PytorchDdpBase& ddp;
  };
  [[nodiscard]] NoSync no_sync() {
    averages_ = false;
    return {*this};
  }

  void zero_grad() { module_.zero_grad(); }

 protected:
  PytorchDdpBase(torch::nn::Module& module, Communicator& communicator, const DdpOptions& options);
  ~PytorchDdpBase();

  void before_forward();
  // Returns the output that the loss is to be made from.
  torch::Tensor after_forward(torch::Tensor output);

 private:
  void send(const std::vector<torch::Tensor>& tensors);
  void make_reducer();

  torch::nn::Module& module_;
  const DdpOptions options_;
  const c10::intrusive_ptr<c10d::ProcessGroup> group_;
  std::shared_ptr<c10d::Reducer> reducer_;
  std::shared_ptr<c10d::Logger> logger_;  // the reducer calls it, and has a weak reference

  bool averages_ = true;       // the coming backward does
  bool sends_buffers_ = true;  // the coming forward does
  bool delays_ = false;        // a static graph's first backward has yet to come
};

// `Model` has a forward() that returns a tensor. The `options` that count are buckets,
// broadcast_buffers, find_unused_parameters and static_graph. c10::Error where PyTorch refuses.
template <typename Model>
class PytorchDdp : public PytorchDdpBase {
 public:
  // Collective. `model` and `communicator` must outlive this object.
  PytorchDdp(Model& model, Communicator& communicator, const DdpOptions& options)
      : PytorchDdpBase(model, communicator, options), model_(model) {}

  template <typename... Args>
  torch::Tensor operator()(Args&&... args) {
    before_forward();
    return after_forward(model_.forward(std::forward<Args>(args)...));
  }

 private:
  Model& model_;
};

}  // namespace ddprun::testing
