// SPDX-License-Identifier: Apache-2.0
// Collectives on tensors, without a gradient: sums, parts, wholes. For a group of one rank the
// caller should skip them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>

#include "worker_sdk/core/communicator.h"

namespace ddprun::torch_adapter {

// A tensor that a collective of `group` is writing. If the collective fails, or nothing waits for
// it (an exception came between), the group keeps the memory: it may still write there.
class PendingTensor {
 public:
  PendingTensor() = default;
  explicit PendingTensor(at::Tensor result);  // there is no collective
  // `source` is the tensor that the collective reads. The group must outlive this object.
  PendingTensor(at::Tensor result, at::Tensor source, Communicator& group);
  ~PendingTensor();
  PendingTensor(PendingTensor&& other) noexcept;
  PendingTensor& operator=(PendingTensor&& other) noexcept;

  void started(WorkPtr work) { work_ = std::move(work); }

  // Returns the tensor, undefined if nothing was started. Call it once. Throws the collective's
  // error.
  at::Tensor wait();

 private:
  bool has_ended_well() const;

  at::Tensor result_, source_;
  Communicator* group_ = nullptr;  // null: the memory is not in use
  WorkPtr work_;                   // null: it could not be started
};

inline constexpr char kGroupTensor[] = "a tensor that a tensor-parallel group exchanges";

// All are collective: every rank has a tensor of the same sizes, of a dtype that communicators know
// (else Error(kUnsupported), which names `what`).

// With `async` these operations are under way when they return, so that the caller can compute
// meanwhile. Without it they are faster: no thread is woken.

// Computes the sum (or another reduction) over the group, in place if `tensor` is contiguous.
PendingTensor start_all_reduce(const at::Tensor& tensor, Communicator& group,
                               ReduceOp op = ReduceOp::kSum, bool async = true);
// Returns all ranks' tensors, one after the other along the first dimension.
PendingTensor start_gather(const at::Tensor& part, Communicator& group, bool async = true,
                           const char* what = kGroupTensor);
// Returns this rank's part, by the first dimension, of the sum. Error(kInvalidArgument) as
// own_part().
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

// Returns all ranks' tensors, one after the other along `dim`.
at::Tensor gather(const at::Tensor& part, std::int64_t dim, Communicator& group);

// Returns this rank's part of a tensor along `dim`, as a view. Not collective.
// Error(kInvalidArgument) naming `what` if it can't be shared evenly.
at::Tensor own_part(const at::Tensor& whole, std::int64_t dim, const Communicator& group,
                    const char* what);

// Throws Error(kInvalidArgument) unless the group can share `size` evenly: "<what> <size> can't be
// …".
void check_shareable(std::int64_t size, const Communicator& group, const char* what);

}  // namespace ddprun::torch_adapter
