// SPDX-License-Identifier: Apache-2.0
// The whole net on every rank, with the averaging of its gradients and its optimiser. Includes no
// torch header.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "apps/train/trained_model.h"
#include "worker_sdk/core/communicator.h"

namespace ddprun::train {

struct NetImpl;

class Model : public TrainedModel {
 public:
  Model(const Options& options, Communicator& communicator, c10::Device device,
        std::uint64_t steps_per_epoch);
  ~Model() override;

  void begin_training() override;
  void begin_step(std::uint64_t step) override;

  // True: from now on backward() computes this rank's own gradients, and isn't collective.
  void set_alone(bool alone) { alone_ = alone; }

  at::Tensor backward(const at::Tensor& pixels, const at::Tensor& labels,
                      const std::vector<MicroBatch>& parts) override;
  // Uses this rank's net alone.
  at::Tensor evaluate(const at::Tensor& pixels) override;

  DdpBase& ddp() override;
  Optimization& optimization() override { return *optimization_; }

  std::vector<NamedTensor> tensors_to_load() override;
  void loaded(const std::vector<NamedTensor>& tensors) override;
  std::vector<NamedTensor> tensors_to_save() override;
  const OwnTensors& own_tensors() const override { return own_; }
  bool is_finite() const override;

  // Return the tensors that a step changes, on the model's device: parameters(), and
  // rest_of_state() with the optimiser's state and buffers of floating point. The numbers of
  // updates are left out: they are the same on all ranks.
  std::vector<NamedTensor> parameters();
  std::vector<NamedTensor> rest_of_state();

 private:
  std::vector<NamedTensor> tensors_without_hook();

  // Constant after construction.
  Communicator& communicator_;
  const std::uint64_t seed_;
  const c10::Device device_;
  const std::shared_ptr<NetImpl> net_;  // LibTorch's modules need a shared_ptr
  const OwnTensors own_;
  const std::shared_ptr<CommHook> hook_;  // shared with ddp_; null: --compress=none
  const std::unique_ptr<DistributedDataParallel<NetImpl>> ddp_;
  const std::unique_ptr<Optimization> optimization_;

  bool alone_ = false;
};

}  // namespace ddprun::train
