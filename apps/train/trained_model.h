// SPDX-License-Identifier: Apache-2.0
// The training loop's interface to the net that it trains, whatever the layout of the net's parts
// on the ranks. Includes no torch header.
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

// Used by one thread. All calls except ddp(), optimization() and own_tensors() are collective.
class TrainedModel {
 public:
  virtual ~TrainedModel() = default;

  // Turns dropout on, until evaluate().
  virtual void begin_training() = 0;

  // Call it before each backward; `step` steps were done before. Dropout is a function of `step`.
  virtual void begin_step(std::uint64_t step) = 0;

  // Returns the mean loss of this rank's N × 1 × 28 × 28 `pixels` and N `labels`, a scalar. Each
  // parameter then has the average of its gradient over all ranks that have it, the parts added up.
  // Every rank gives the same number of parts.
  virtual at::Tensor backward(const at::Tensor& pixels, const at::Tensor& labels,
                              const std::vector<MicroBatch>& parts) = 0;

  // Maps N × 1 × 28 × 28 images to N × 10 log-probabilities, without dropout.
  virtual at::Tensor evaluate(const at::Tensor& pixels) = 0;

  // Averages over the ranks that share the images.
  virtual DdpBase& ddp() = 0;
  virtual Optimization& optimization() = 0;

  // A checkpoint's tensors: whole ones, with the same names and shapes for every layout of the net.
  // The checkpoint is read into tensors_to_load(). Then loaded() takes what this rank needs of
  // them.
  virtual std::vector<NamedTensor> tensors_to_load() = 0;
  virtual void loaded(const std::vector<NamedTensor>& tensors) = 0;
  virtual std::vector<NamedTensor> tensors_to_save() = 0;

  // These call DdpBase's functions. With --zero the order doesn't matter to a training that
  // resumes, and setting it has no effect: buckets are formed once and for all.
  virtual std::vector<std::string> gradient_order() { return ddp().gradient_order(); }
  virtual void set_gradient_order(const std::vector<std::string>& names) {
    if (ddp().zero() == ZeroStage::kOff) ddp().set_gradient_order(names);
  }

  // Returns which of the tensors are this rank's alone.
  virtual const OwnTensors& own_tensors() const = 0;

  // Returns whether all parameters of all ranks are finite. The same on all ranks.
  virtual bool is_finite() const = 0;

  // Copies the optimiser's state of rank `root` of `ranks`, which have the same part of the net, to
  // all of them. A rank's own tensors don't change. `device` is the net's.
  void broadcast_optimizer(int root, Communicator& ranks, c10::Device device);
};

// Returns whether all numbers of all ranks' tensors are finite. Collective; the same on all ranks.
// `device` is that of the tensors.
bool are_finite(const std::vector<at::Tensor>& tensors, Communicator& ranks, c10::Device device);

// Makes the net with weights that are a function of the seed, the same on any number of ranks. The
// references outlive it. Throws what DistributedDataParallel and make_parallel_model() throw.
std::unique_ptr<TrainedModel> make_model(const Options& options, const Place& place,
                                         c10::Device device, std::uint64_t steps_per_epoch);

// Makes the net laid out over a mesh of ranks (--parallel): stages along pp, features along tp,
// images along dp. Its losses are those of one process, apart from rounding.
// Error(kInvalidArgument) for a layout that the net can't have.
std::unique_ptr<TrainedModel> make_parallel_model(const Options& options, Mesh& mesh,
                                                  c10::Device device,
                                                  std::uint64_t steps_per_epoch);

}  // namespace ddprun::train
