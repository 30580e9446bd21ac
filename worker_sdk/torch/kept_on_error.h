// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <exception>
#include <vector>

#include "worker_sdk/core/communicator.h"

namespace ddprun::torch_adapter {

// Stands in a scope whose collectives use these tensors. If an exception ends the scope, the
// communicator owns their memory from then on (Communicator::keep), for NCCL may still write there.
// The communicator outlives this object.
class KeptOnError {
 public:
  KeptOnError(Communicator& communicator, const std::vector<at::Tensor>& tensors);
  ~KeptOnError();
  KeptOnError(const KeptOnError&) = delete;
  KeptOnError& operator=(const KeptOnError&) = delete;

 private:
  Communicator& communicator_;
  // Not the tensors: set_data() gives a tensor other memory.
  std::vector<c10::Storage> memory_;
  const int num_exceptions_ = std::uncaught_exceptions();
};

}  // namespace ddprun::torch_adapter
