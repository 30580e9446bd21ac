// SPDX-License-Identifier: Apache-2.0
// The training loop's interface to the net that it trains, however its parts lie on the ranks. No
// torch header here.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "apps/train/optimization.h"
#include "apps/train/options.h"
#include "apps/train/place.h"
#include "worker_sdk/parallel/micro_batches.h"
#include "worker_sdk/torch/checkpoint.h"
#include "worker_sdk/torch/distributed_data_parallel.h"

namespace ddprun::train {

// One thread. All calls but ddp(), optimization() and own_tensors() are collective.
class TrainedModel {
 public:
  virtual ~TrainedModel() = default;

  // Dropout does its work from here on until evaluate().
  virtual void begin_training() = 0;

  // Call it before each backward; `step` steps were done before. Dropout is a function of `step`.
  virtual void begin_step(std::uint64_t step) = 0;

  // The mean loss of this rank's N × 1 × 28 × 28 `pixels` and N `labels`, a scalar. Each parameter
  // then has the average of its gradient over all ranks that have it, the parts added up. As many
  // parts on each.
  virtual at::Tensor backward(const at::Tensor& pixels, const at::Tensor& labels,
                              const std::vector<MicroBatch>& parts) = 0;

  // N × 1 × 28 × 28 → N × 10 log-probabilities, without dropout.
  virtual at::Tensor evaluate(const at::Tensor& pixels) = 0;

  // Averages over the ranks that share the images.
  virtual DdpBase& ddp() = 0;
  virtual Optimization& optimization() = 0;

  // A checkpoint's tensors: whole ones, with the same names and shapes however the net is laid out.
  // The checkpoint is read into those to load. Then loaded() takes what this rank needs of them.
  virtual std::vector<NamedTensor> tensors_to_load() = 0;
  virtual void loaded(const std::vector<NamedTensor>& tensors) = 0;
  virtual std::vector<NamedTensor> tensors_to_save() = 0;

  // DdpBase's, if they say something for those who go on from a checkpoint. Else empty, and no
  // effect: buckets are formed for good at once with --zero.
  virtual std::vector<std::string> gradient_order() { return ddp().gradient_order(); }
  virtual void set_gradient_order(const std::vector<std::string>& names) {
    if (ddp().zero() == ZeroStage::kOff) ddp().set_gradient_order(names);
  }

  // Which of them are this rank's alone.
  virtual const OwnTensors& own_tensors() const = 0;

  // All parameters of all ranks are. The same on all.
  virtual bool is_finite() const = 0;

  // The optimiser's state of rank `root` of `ranks`, which have the same part of the net, becomes
  // that of all of them. A rank's own part stays. `device`: the net's.
  void broadcast_optimizer(int root, Communicator& ranks, c10::Device device);
};

// Each number of all ranks' tensors is. Collective; the same on all. `device`: where they are.
bool are_finite(const std::vector<at::Tensor>& tensors, Communicator& ranks, c10::Device device);

// The same weights on any number of ranks, a function of the seed. The references outlive it.
// Throws what DistributedDataParallel and make_parallel_model() do.
std::unique_ptr<TrainedModel> make_model(const Options& options, const Place& place,
                                         c10::Device device, std::uint64_t steps_per_epoch);

// The net laid out over a mesh of ranks (--parallel): stages along pp, features along tp, images
// along dp. Its losses are those of one process, but for rounding. Error(kInvalidArgument) for a
// layout that the net can't have.
std::unique_ptr<TrainedModel> make_parallel_model(const Options& options, Mesh& mesh,
                                                  c10::Device device,
                                                  std::uint64_t steps_per_epoch);

}  // namespace ddprun::train
