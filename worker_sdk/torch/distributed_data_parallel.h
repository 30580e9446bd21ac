// SPDX-License-Identifier: Apache-2.0
// DistributedDataParallel for LibTorch: any torch::nn::Module, trained on every rank with the same
// averaged gradients. PyTorch's algorithm and its defaults; docs/ddp.md explains it.
// No torch header needed here: include what your model needs.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "worker_sdk/core/communicator.h"
#include "worker_sdk/ddp/comm_hook.h"
#include "worker_sdk/ddp/reducer.h"

namespace at {
class Tensor;
}
namespace torch::nn {
class Module;
}

namespace ddprun {

struct DdpOptions {
  BucketLimits buckets{};  // PyTorch's: 1 MiB, then 25 MiB
  // Rank 0's buffers (e.g. running means) go to all before each forward.
  bool broadcast_buffers = true;
  // Averages the buckets instead of the plain all-reduce (comm_hook.h). Shared with whoever wants
  // to read its state.
  std::shared_ptr<CommHook> comm_hook = nullptr;
};

// What does not depend on the model's type; use DistributedDataParallel below.
//
// Forward and backward run on one thread. After an error of the communicator (a lost rank, a
// deadline) leave the program: the next round starts from the last checkpoint.
class DdpBase {
 public:
  // A scope in which gradients are only accumulated locally. It must cover forward and backward.
  class NoSync {
   public:
    explicit NoSync(DdpBase& ddp);
    ~NoSync();
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

   private:
    DdpBase& ddp_;
  };
  [[nodiscard]] NoSync no_sync() { return NoSync(*this); }

  // Forgets all gradients; the next backward writes them into the buckets. Instead of
  // optimizer.zero_grad(), which works too.
  void zero_grad();

  // As DdpOptions::comm_hook, between a backward and the next forward; null: none any more.
  // Collective.
  void register_comm_hook(std::shared_ptr<CommHook> hook);

  // Bytes that this rank gave to collectives for its gradients since the hook was registered.
  const GradientTraffic& traffic() const;

  // The last finished backward: when each bucket was launched and finished.
  const IterationTrace& trace() const;

  // Buckets and the parameters' numbers in them: one per dtype at first, then by order of arrival.
  const BucketPlan& bucket_plan() const;

  // The parameters whose gradients are averaged, in bucket_plan()'s numbering.
  const std::vector<at::Tensor>& parameters() const;

  // The memory of the buckets, padding (zeros) included. Moves where bucket_plan() changes.
  std::vector<TensorView> gradient_buckets() const;

  // Call before a forward that does not go through forward() or operator(): sends buffers, and once
  // forms the final buckets. Collective.
  void before_forward();

 protected:
  DdpBase(torch::nn::Module& module, Communicator& communicator, const DdpOptions& options);
  ~DdpBase();
  DdpBase(const DdpBase&) = delete;
  DdpBase& operator=(const DdpBase&) = delete;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// `Model` is a subclass of torch::nn::Module with a forward(). Use:
//
//   Net net;                                          // TORCH_MODULE(Net), or a struct NetImpl
//   ddprun::DistributedDataParallel ddp(*net, *communicator);
//   ddp.zero_grad();
//   loss(ddp(images), labels).backward();             // gradients are averages when it returns
//   optimizer.step();                                 // over net->parameters()
//
// Every parameter that requires a gradient must get one in each backward; backward throws
// Error(kInvalidArgument) naming those that got none. Parameters are frozen, added or replaced
// before wrapping, not after.
template <typename Model>
class DistributedDataParallel : public DdpBase {
 public:
  // Collective. Compares names, shapes and dtypes of the parameters on all ranks
  // (Error(kInvalidArgument) on every rank, naming rank and parameter), then copies rank 0's
  // parameters and buffers to all. `model` and `communicator` must outlive this object.
  DistributedDataParallel(Model& model, Communicator& communicator, const DdpOptions& options = {})
      : DdpBase(model, communicator, options), model_(model) {}

  Model& module() { return model_; }

  template <typename... Args>
  decltype(auto) forward(Args&&... args) {
    before_forward();
    return model_.forward(std::forward<Args>(args)...);
  }
  template <typename... Args>
  decltype(auto) operator()(Args&&... args) {
    return forward(std::forward<Args>(args)...);
  }

 private:
  Model& model_;
};

}  // namespace ddprun
