// SPDX-License-Identifier: Apache-2.0
// The net that is trained, with the averaging of its gradients and its optimiser: what a
// checkpoint holds. No torch header here.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "examples/train/micro_batches.h"
#include "examples/train/optimization.h"
#include "examples/train/options.h"
#include "examples/train/own_tensors.h"
#include "worker_sdk/core/communicator.h"
#include "worker_sdk/torch/checkpoint.h"
#include "worker_sdk/torch/distributed_data_parallel.h"

namespace ddprun::train {

struct NetImpl;

// One thread.
class Model {
 public:
  // Collective: the same weights on all ranks, a function of the seed. The references outlive this
  // object. Errors as DistributedDataParallel's.
  Model(const Options& options, Communicator& communicator, c10::Device device,
        std::uint64_t steps_per_epoch);
  ~Model();

  // Dropout does its work from here on until evaluate().
  void begin_training();

  // Dropout's random numbers of the coming step.
  void seed_dropout(std::uint64_t seed);

  // True: from now on backward() computes this rank's own gradients, and is not collective.
  void set_alone(bool alone) { alone_ = alone; }

  // The mean loss of N × 1 × 28 × 28 `pixels` and N `labels`, a scalar; each parameter has the
  // average of its gradient over all ranks, the parts added up. Collective: as many parts on each.
  at::Tensor backward(const at::Tensor& pixels, const at::Tensor& labels,
                      const std::vector<MicroBatch>& parts);

  // N × 1 × 28 × 28 → N × 10 log-probabilities, of this rank's model alone, without dropout.
  at::Tensor evaluate(const at::Tensor& pixels);

  DdpBase& ddp();
  Optimization& optimization() { return *optimization_; }

  // Changed in place by steps. Those to save are collective, and of this moment.
  std::vector<NamedTensor> tensors_to_load();
  std::vector<NamedTensor> tensors_to_save();

  // What a step changes: parameters; the optimiser's state and buffers, floating point both.
  std::vector<NamedTensor> parameters();
  std::vector<NamedTensor> rest_of_state();

  // Which of them are this rank's alone.
  const OwnTensors& own_tensors() const { return own_; }

  // The optimiser's state of rank `root` becomes every rank's, but for what is a rank's own.
  // Collective.
  void broadcast_optimizer(int root);

  // All parameters of all ranks are. Collective; the same on all.
  bool is_finite() const;

 private:
  std::vector<NamedTensor> tensors_without_hook();

  // Constant after construction.
  Communicator& communicator_;
  const c10::Device device_;
  const std::shared_ptr<NetImpl> net_;  // LibTorch's modules know no other owner
  const OwnTensors own_;
  const std::shared_ptr<CommHook> hook_;  // second owner: ddp_; null: --compress=none
  const std::unique_ptr<DistributedDataParallel<NetImpl>> ddp_;
  const std::unique_ptr<Optimization> optimization_;

  bool alone_ = false;
};

}  // namespace ddprun::train
