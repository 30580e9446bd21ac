// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/torch/kept_on_error.h"

#include <memory>
#include <utility>

namespace ddprun::torch_adapter {

KeptOnError::KeptOnError(Communicator& communicator, const std::vector<at::Tensor>& tensors)
    : communicator_(communicator) {
  memory_.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) memory_.push_back(tensor.storage());
}

KeptOnError::~KeptOnError() {
  if (std::uncaught_exceptions() == num_exceptions_) return;
  communicator_.keep(std::make_shared<std::vector<c10::Storage>>(std::move(memory_)));
}

}  // namespace ddprun::torch_adapter
