// SPDX-License-Identifier: Apache-2.0
// What the parallel layers share: parts of their parameters, and autocast.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "worker_sdk/core/communicator.h"

namespace ddprun {

inline constexpr std::int64_t kWhole = -1;  // instead of a dimension: each rank has all of it

struct PartOfWhole {
  at::Tensor part;  // undefined: the layer has none, nor may `whole` be one
  at::Tensor whole;
  std::int64_t dim = 0;
  const char* what = "";  // in messages
};

// This rank's parts, copied. Not collective. Error(kInvalidArgument): a shape is another; nothing
// was changed.
void load_parts(const std::vector<PartOfWhole>& parts, const Communicator& group);

// The whole of a parameter, a copy; undefined where it is. Collective unless kWhole.
at::Tensor full_tensor(const at::Tensor& part, std::int64_t dim, Communicator& group);

// A parameter as LibTorch's functions take one that may be missing.
std::optional<at::Tensor> given(const at::Tensor& parameter);

// As autocast would cast it for a matmul, within the graph: an autograd function sees its tensors
// before and after, so they must be of one type.
at::Tensor in_autocast(const at::Tensor& tensor);
std::optional<at::Tensor> in_autocast(const std::optional<at::Tensor>& tensor);

}  // namespace ddprun
