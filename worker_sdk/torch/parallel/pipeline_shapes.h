// SPDX-License-Identifier: Apache-2.0
// What stages of a pipeline tell each other beside the tensors: of which step a message is, and
// what a tensor that follows looks like. Messages of one size, of kInt64. Heavy: includes ATen.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "worker_sdk/core/tensor_view.h"

namespace ddprun::torch_adapter {

inline constexpr std::size_t kNoteNumbers = 16;  // 128 bytes
using Note = std::array<std::int64_t, kNoteNumbers>;

// The first message of each step, from each stage to the one after it.
struct StepNote {
  bool trains = true;            // false: evaluates
  bool has_shapes = true;        // a TensorShape comes before each activation of this step
  std::int64_t num_samples = 0;  // of the batch

  Note encode() const;
  // Throws Error(kProtocol) where it is none.
  static StepNote decode(const Note& note);
};

struct TensorShape {
  at::ScalarType dtype = at::kFloat;
  std::vector<std::int64_t> sizes;

  friend bool operator==(const TensorShape&, const TensorShape&) = default;

  Note encode() const;
  // Throws Error(kProtocol) where it is none.
  static TensorShape decode(const Note& note);
  std::string text() const;  // "Float [32, 1024]"
};

TensorShape shape_of(const at::Tensor& tensor);

// Throws Error(kInvalidArgument) that begins with `whose` where stages can't exchange such a
// tensor.
void check_can_travel(const at::Tensor& tensor, const std::string& whose);

// A dense tensor's memory; it must be contiguous and outlive the view.
TensorView message_view(const at::Tensor& tensor);

}  // namespace ddprun::torch_adapter
