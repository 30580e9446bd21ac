// SPDX-License-Identifier: Apache-2.0
// torch.amp.GradScaler for C++ and for several ranks: keeps float16's small gradients from becoming
// zero. docs/amp.md explains it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "worker_sdk/core/communicator.h"

namespace ddprun {

struct GradScalerOptions {
  double init_scale = 65536;
  double growth_factor = 2;             // > 1
  double backoff_factor = 0.5;          // in (0, 1)
  std::int64_t growth_interval = 2000;  // steps in a row without an overflow; > 0
};

// A step:
//
//   scaler.scale(loss).backward();
//   const at::Tensor overflow = scaler.unscale_async(optimizer.gradients());
//   clip_gradient_norm(…);      // if wanted
//   optimizer.step(overflow);   // FlatOptimizer, ShardedOptimizer
//   scaler.update();
//
// On a GPU no call of this step waits. With another optimiser: if (scaler.unscale(gradients)) step.
// One thread at a time.
class GradScaler {
 public:
  // `device` is that of the losses. `communicator` has the ranks that agree, and must outlive this
  // object. Null: this process alone. Error(kInvalidArgument) names an option out of its range.
  GradScaler(c10::Device device, Communicator* communicator, const GradScalerOptions& options = {});

  // Returns the loss times the scale.
  at::Tensor scale(const at::Tensor& loss) const;

  // Divides the gradients by the scale, in place. Returns one float32 on the scaler's device. 1: a
  // gradient on any of the ranks is inf or nan; else 0. Every rank gets the same answer, and skips
  // the update if it is 1. Collective; once for each optimiser between two update()s.
  // Error(kInvalidArgument): a gradient is float16, whose parameter should be float32; or it was
  // unscaled already since the last update().
  [[nodiscard]] at::Tensor unscale_async(const std::vector<at::Tensor>& gradients);

  // The same, but waits for the answer. False: an overflow.
  [[nodiscard]] bool unscale(const std::vector<at::Tensor>& gradients);

  // Ends the step: the scale shrinks after an overflow, grows after growth_interval steps without.
  // Error(kInvalidArgument): nothing was unscaled.
  void update();

  double current_scale() const;         // waits for the GPU
  std::int64_t growth_tracker() const;  // steps since overflow or growth; waits for the GPU

  // Returns the state that a checkpoint saves, and loads by writing into it: "scale" (float32),
  // "growth_tracker" (int32), one number each. With the options it is PyTorch's state_dict().
  std::vector<std::pair<std::string_view, at::Tensor>> state() const;

 private:
  const GradScalerOptions options_;
  Communicator* const communicator_;  // null: this process alone
  at::Tensor scale_, growth_tracker_;
  at::Tensor found_inf_;  // > 0 if an unscale() since the last update() found an inf or nan
  bool unscaled_ = false;
  // Gradients divided since the last update(), kept so that no other gets their memory.
  std::map<const void*, at::Tensor> divided_;
};

}  // namespace ddprun
