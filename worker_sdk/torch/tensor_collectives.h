// SPDX-License-Identifier: Apache-2.0
// Collectives on tensors, without a gradient: sums, parts, wholes. It is up to the caller to skip a
// group of one.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "worker_sdk/core/communicator.h"

namespace ddprun::torch_adapter {

// A tensor that a collective is writing. One that nobody waits for (an exception came between)
// keeps its memory for ever: the communicator may still write there.
class PendingTensor {
 public:
  PendingTensor() = default;
  // `source` is what the collective reads.
  PendingTensor(at::Tensor result, at::Tensor source, WorkPtr work);
  ~PendingTensor();
  PendingTensor(PendingTensor&& other) noexcept;
  PendingTensor& operator=(PendingTensor&& other) noexcept;

  // The tensor, undefined where nothing was started. Once. Throws the collective's error.
  at::Tensor wait();

 private:
  at::Tensor result_, source_;
  WorkPtr work_;
};

inline constexpr char kGroupTensor[] = "a tensor that a tensor-parallel group exchanges";

// All are collective: every rank has a tensor of the same sizes, of a dtype that communicators know
// (else Error(kUnsupported), which names `what`).

// Under way when they return, unless they aren't `async`: for what else there is to compute
// meanwhile. Without that the others are faster, they wake no thread.

// The sum (or another reduction) over the group; in place where `tensor` is contiguous.
PendingTensor start_all_reduce(const at::Tensor& tensor, Communicator& group,
                               ReduceOp op = ReduceOp::kSum, bool async = true);
// All ranks' tensors, one behind the other along the first dimension.
PendingTensor start_gather(const at::Tensor& part, Communicator& group, bool async = true,
                           const char* what = kGroupTensor);
// This rank's part, by the first dimension, of the sum. Error(kInvalidArgument): as own_part().
PendingTensor start_sum_scatter(const at::Tensor& whole, Communicator& group, bool async = true);

inline at::Tensor all_reduced(const at::Tensor& tensor, Communicator& group,
                              ReduceOp op = ReduceOp::kSum) {
  return start_all_reduce(tensor, group, op, /*async=*/false).wait();
}
inline at::Tensor gathered(const at::Tensor& part, Communicator& group,
                           const char* what = kGroupTensor) {
  return start_gather(part, group, /*async=*/false, what).wait();
}
inline at::Tensor sum_scattered(const at::Tensor& whole, Communicator& group) {
  return start_sum_scatter(whole, group, /*async=*/false).wait();
}

// All ranks' tensors, one behind the other along `dim`.
at::Tensor gather(const at::Tensor& part, std::int64_t dim, Communicator& group);

// This rank's part of a tensor along `dim`, a view. Not collective. Error(kInvalidArgument) where
// it can't be shared evenly, naming `what`.
at::Tensor own_part(const at::Tensor& whole, std::int64_t dim, const Communicator& group,
                    const char* what);

// Error(kInvalidArgument) unless the group can share `size` evenly: "<what> <size> can't be …".
void check_shareable(std::int64_t size, const Communicator& group, const char* what);

}  // namespace ddprun::torch_adapter
