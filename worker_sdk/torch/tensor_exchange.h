// SPDX-License-Identifier: Apache-2.0
// Moves LibTorch tensors and bytes through a Communicator, for example from one rank to all. Heavy:
// includes ATen.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "common/error.h"
#include "worker_sdk/core/communicator.h"

namespace ddprun::torch_adapter {

// Returns the tensor's dtype. Error(kUnsupported) naming `what` if communicators don't know it.
DType dtype_of(const at::TensorBase& tensor, const std::string& what);
// Returns the dtype in which a parameter's gradient is averaged. Error(kUnsupported) naming `what`
// if it can't be. A complex number is two of the dtype that this returns.
DType gradient_dtype_of(const at::TensorBase& parameter, const std::string& what);
// A gradient is dense, of its parameter's dtype and without a graph; these fields allow exceptions.
struct GradientMay {
  bool be_sparse = false;
  bool have_graph = false;
};
// Error(kUnsupported) naming `name` unless the parameter's gradient, which is defined, is as above.
void check_plain_gradient(const at::Tensor& parameter, const std::string& name,
                          GradientMay may = {});
Device comm_device_of(const at::TensorBase& tensor);
// Returns a view of a tensor's memory. The tensor must be contiguous and outlive the view. Errors
// as dtype_of().
TensorView view_of(const at::Tensor& contiguous, const std::string& what);
// Returns a tensor of one dimension over the view's memory, which must outlive it.
at::Tensor tensor_over(const TensorView& view);

// Sets `place` to `source` times `factor`, by one kernel on one device. Sizes are the same.
void copy_times(const at::Tensor& place, const at::Tensor& source, double factor);

// Copies root's values into every rank's tensors. Any dtype and device; any layout but sparse.
// Sizes, dtypes and strides are the same on all ranks. Small tensors, and those that are not on
// `device` (that of the communicator's buffers), travel together.
void broadcast_tensors(const std::vector<at::Tensor>& tensors, int root, Communicator& communicator,
                       c10::Device device);

// broadcast_tensors() of the same tensors many times: keeps the memory in which they travel.
class TensorBroadcast {
 public:
  TensorBroadcast(std::vector<at::Tensor> tensors, c10::Device device);
  void run(int root, Communicator& communicator);

 private:
  // Tensors of one dtype and device: one kernel copies them all.
  struct Kind {
    std::vector<at::Tensor> tensors, places;
  };
  void lay_out();
  bool fits() const;

  // Constant after construction.
  const std::vector<at::Tensor> tensors_;
  const c10::Device device_;

  // The state at the last lay_out().
  std::vector<at::Tensor> alone_, empty_;
  at::Tensor staging_;
  std::vector<Kind> kinds_;
};

// Sets every rank's `bytes` to root's, of any size. `device` is that of the communicator's buffers.
void broadcast_bytes(std::string& bytes, int root, Communicator& communicator, c10::Device device);

// Returns `op` over all ranks' bytes at each place; every rank gives as many. The result is on
// `device` and may not be ready: bytes_on_host() waits for it.
at::Tensor reduced_bytes(const std::vector<std::uint8_t>& bytes, ReduceOp op,
                         Communicator& communicator, c10::Device device);
std::vector<std::uint8_t> bytes_on_host(const at::Tensor& bytes);

// Does both, in place.
void reduce_bytes(std::vector<std::uint8_t>& bytes, ReduceOp op, Communicator& communicator,
                  c10::Device device);

// Returns each rank's byte, by rank.
std::vector<std::uint8_t> gather_bytes(std::uint8_t mine, Communicator& communicator,
                                       c10::Device device);

// Returns each rank's `text`, cut to `limit_bytes`, by rank.
std::vector<std::string> gather_texts(const std::string& text, std::size_t limit_bytes,
                                      Communicator& communicator, c10::Device device);

// Makes the collective `call`. If ranks made different calls, or none, the communicator's error
// names only the operation: "; here " and `what` are added.
template <typename Call>
void say_what_for(const std::string& what, const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kProtocol && error.code() != ErrorCode::kTimeout) throw;
    throw Error(error.code(), std::string(error.what()) + "; here " + what);
  }
}

}  // namespace ddprun::torch_adapter
