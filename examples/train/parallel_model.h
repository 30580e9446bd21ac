// SPDX-License-Identifier: Apache-2.0
// The net laid out over a mesh of ranks (--parallel): stages along pp, features along tp, images
// along dp. Its losses are those of one process, but for rounding. No torch header here.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "examples/train/trained_model.h"
#include "examples/train/whole_tensors.h"

namespace ddprun {
class Pipeline;
}

namespace ddprun::train {

struct NetImpl;
struct ParallelNetImpl;
struct DropoutMasks;

class ParallelModel : public TrainedModel {
 public:
  // Throws Error(kInvalidArgument) for a layout that the net can't have.
  ParallelModel(const Options& options, Mesh& mesh, c10::Device device,
                std::uint64_t steps_per_epoch);
  ~ParallelModel() override;

  void begin_training() override;
  void begin_step(std::uint64_t step) override { step_ = step; }
  at::Tensor backward(const at::Tensor& pixels, const at::Tensor& labels,
                      const std::vector<MicroBatch>& parts) override;
  at::Tensor evaluate(const at::Tensor& pixels) override;

  DdpBase& ddp() override;
  Optimization& optimization() override { return *optimization_; }

  std::vector<NamedTensor> tensors_to_load() override;
  void loaded(const std::vector<NamedTensor>& tensors) override;
  std::vector<NamedTensor> tensors_to_save() override;
  // Another layout has other buckets.
  std::vector<std::string> gradient_order() override { return {}; }
  void set_gradient_order(const std::vector<std::string>&) override {}
  const OwnTensors& own_tensors() const override { return own_; }
  bool is_finite() const override;

 private:
  class StageOfBatch;

  // `whole` is what all ranks together have; for this call only.
  ParallelModel(const Options& options, Mesh& mesh, c10::Device device,
                std::uint64_t steps_per_epoch, NetImpl& whole);

  DropoutMasks masks_for(std::int64_t num_images) const;
  at::Tensor backward_of_whole_net(const at::Tensor& pixels, const at::Tensor& labels,
                                   const std::vector<MicroBatch>& parts, const DropoutMasks& masks);
  at::Tensor backward_of_stage(const at::Tensor& pixels, const at::Tensor& labels,
                               const DropoutMasks& masks);
  std::vector<NamedTensor> own_parts();

  // Constant after construction.
  const std::uint64_t seed_;
  Mesh& mesh_;
  const c10::Device device_;
  const OwnTensors own_;
  const std::shared_ptr<ParallelNetImpl> part_;  // LibTorch's modules know no other owner
  const WholeTensors whole_;
  const std::unique_ptr<DistributedDataParallel<ParallelNetImpl>> ddp_;
  const std::unique_ptr<Optimization> optimization_;
  const std::unique_ptr<StageOfBatch> stage_;
  std::unique_ptr<Pipeline> pipeline_;  // null: one stage

  std::uint64_t step_ = 0;
};

}  // namespace ddprun::train
