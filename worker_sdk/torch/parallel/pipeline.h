// SPDX-License-Identifier: Apache-2.0
// Pipeline parallelism for LibTorch: a model in stages, one on each rank, that works on several
// parts of a batch at once (docs/pipeline.md).
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>

#include "worker_sdk/core/communicator.h"
#include "worker_sdk/parallel/micro_batches.h"
#include "worker_sdk/parallel/pipeline_schedule.h"

namespace ddprun {

struct PipelineOptions {
  PipelineKind kind = PipelineKind::k1F1B;
  // Parts of a batch; there are fewer if the batch has fewer samples. 1: plain model parallelism,
  // one stage works at a time.
  int num_micro_batches = 1;
  std::optional<std::chrono::milliseconds> timeout{};  // of each message; default: communicator's
  bool broadcast_loss = false;  // train_step() returns the loss on every stage, as float64
};

// Used by one thread, that of the communicator. Use it on each rank as follows:
//
//   ddprun::Pipeline pipeline([&](const at::Tensor& x) { return layers->forward(x); },
//                             mesh.along("pp"), {.num_micro_batches = 8});
//   optimizer.zero_grad();
//   loss = pipeline.train_step(images, [&](const at::Tensor& output, const MicroBatch& part) {
//     return torch::cross_entropy_loss(output, labels.narrow(0, part.first, part.count));
//   });
//   optimizer.step();  // over this stage's parameters
class Pipeline {
 public:
  // Takes a part of a batch, or the output of the stage before; returns the input of the stage
  // after. It is float32, float64, float16 or bfloat16, of any shape, on the communicator's kind of
  // device.
  using Stage = std::function<at::Tensor(const at::Tensor& input)>;

  // Returns the mean loss, one number, of the last stage's output for the batch's samples
  // part.first … part.first + part.count.
  using Loss = std::function<at::Tensor(const at::Tensor& output, const MicroBatch& part)>;

  // Collective: rank s of `communicator` has stage s. Splits it twice; the communicator is free for
  // other use at any time, and may be destroyed first. Throws Error(kInvalidArgument) on every rank
  // if options differ or can't be, and Communicator::split's errors.
  Pipeline(Stage stage, Communicator& communicator, const PipelineOptions& options = {});
  ~Pipeline();

  int stage() const;
  int num_stages() const;
  bool is_first() const { return stage() == 0; }
  bool is_last() const { return stage() == num_stages() - 1; }

  // Runs forward and backward of a batch, whose samples are `input`'s first dimension (first stage;
  // ignored elsewhere). Collective. Adds the gradients of the mean loss over the batch to the
  // parameters' gradients, as one backward over all of it would. Each part's loss counts by its
  // number of samples. Returns that loss, detached, on the last stage (broadcast_loss: on all), an
  // undefined tensor elsewhere. `loss` is called on the last stage only.
  //
  // If inputs have the same shape and dtype as in the step before, each stage's outputs must, too:
  // shapes are then not sent.
  //
  // Errors: kInvalidArgument for an input or a loss that can't be, and for stages that make
  // different calls. Also the communicator's, and what `stage` and `loss` throw. Unless the error
  // says that nothing has begun, the other stages end with kPeerLost, which says what happened
  // here, and no later call succeeds.
  at::Tensor train_step(const at::Tensor& input, const Loss& loss);

  // Runs forwards only, without gradients. Collective. Returns the outputs of all parts, joined
  // along their first dimension, on the last stage; an undefined tensor elsewhere. Errors as above.
  at::Tensor evaluate(const at::Tensor& input);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ddprun
