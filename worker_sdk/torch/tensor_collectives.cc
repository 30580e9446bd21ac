// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/torch/tensor_collectives.h"

#include <ATen/ATen.h>

#include <exception>
#include <memory>
#include <utility>
#include <vector>

#include "common/throw_error.h"
#include "worker_sdk/torch/current_stream.h"
#include "worker_sdk/torch/tensor_exchange.h"

namespace ddprun::torch_adapter {
namespace {

TensorView group_view(const at::Tensor& dense) { return view_of(dense, kGroupTensor); }

std::vector<std::int64_t> with_first(const at::Tensor& tensor, std::int64_t first) {
  std::vector<std::int64_t> sizes = tensor.sizes().vec();
  sizes.front() = first;
  return sizes;
}

void check_has_first_dimension(const at::Tensor& tensor) {
  if (tensor.dim() > 0) return;
  throw_invalid("tensor parallel: a tensor without dimensions has no parts: give it one");
}

}  // namespace

PendingTensor::PendingTensor(at::Tensor result) : result_(std::move(result)) {}

PendingTensor::PendingTensor(at::Tensor result, at::Tensor source, Communicator& group)
    : result_(std::move(result)), source_(std::move(source)), group_(&group) {}

PendingTensor::~PendingTensor() {
  if (!group_ || has_ended_well()) return;
  group_->keep(
      std::make_shared<std::pair<at::Tensor, at::Tensor>>(std::move(result_), std::move(source_)));
}

bool PendingTensor::has_ended_well() const {
  try {
    if (!work_ || !work_->is_completed()) return false;
    work_->wait();
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

PendingTensor::PendingTensor(PendingTensor&& other) noexcept { *this = std::move(other); }

PendingTensor& PendingTensor::operator=(PendingTensor&& other) noexcept {
  std::swap(result_, other.result_);
  std::swap(source_, other.source_);
  std::swap(group_, other.group_);
  std::swap(work_, other.work_);
  return *this;
}

at::Tensor PendingTensor::wait() {
  if (work_) work_->wait();
  group_ = nullptr;
  work_.reset();
  source_.reset();
  return std::move(result_);
}

PendingTensor start_all_reduce(const at::Tensor& tensor, Communicator& group, ReduceOp op,
                               bool async) {
  const at::Tensor result = tensor.contiguous();
  const TensorView view = group_view(result);
  if (view.count == 0) return PendingTensor(result);
  group.follow_stream(current_torch_stream);
  PendingTensor pending(result, {}, group);
  pending.started(group.all_reduce(view, op, {.async = async}));
  return pending;
}

PendingTensor start_gather(const at::Tensor& part, Communicator& group, bool async,
                           const char* what) {
  check_has_first_dimension(part);
  const at::Tensor dense = part.contiguous();
  const at::Tensor whole =
      at::empty(with_first(dense, dense.size(0) * group.size()), dense.options());
  const TensorView view = view_of(dense, what);
  if (view.count == 0) return PendingTensor(whole);
  group.follow_stream(current_torch_stream);
  PendingTensor pending(whole, dense, group);
  pending.started(group.all_gather(view, view_of(whole, what), {.async = async}));
  return pending;
}

PendingTensor start_sum_scatter(const at::Tensor& whole, Communicator& group, bool async) {
  check_has_first_dimension(whole);
  check_shareable(whole.size(0), group, "a sequence of length");
  const at::Tensor dense = whole.contiguous();
  const at::Tensor part =
      at::empty(with_first(dense, dense.size(0) / group.size()), dense.options());
  const TensorView view = group_view(part);
  if (view.count == 0) return PendingTensor(part);
  group.follow_stream(current_torch_stream);
  PendingTensor pending(part, dense, group);
  pending.started(group.reduce_scatter(group_view(dense), view, ReduceOp::kSum, {.async = async}));
  return pending;
}

at::Tensor gather(const at::Tensor& part, std::int64_t dim, Communicator& group) {
  check_has_first_dimension(part);
  const at::Tensor parts = gathered(part.unsqueeze(0), group);
  const std::int64_t at = dim < 0 ? dim + part.dim() : dim;
  std::vector<std::int64_t> sizes = part.sizes().vec();
  sizes.at(static_cast<std::size_t>(at)) *= group.size();
  return parts.movedim(0, at).reshape(sizes);
}

at::Tensor own_part(const at::Tensor& whole, std::int64_t dim, const Communicator& group,
                    const char* what) {
  check_has_first_dimension(whole);
  check_shareable(whole.size(dim), group, what);
  const std::int64_t length = whole.size(dim) / group.size();
  return whole.narrow(dim, group.rank() * length, length);
}

void check_shareable(std::int64_t size, const Communicator& group, const char* what) {
  if (size >= 0 && size % group.size() == 0) return;
  throw_invalid("tensor parallel: ", what, " ", size, " can't be shared evenly by the ",
                group.size(), " ranks of the group: use a multiple of ", group.size());
}

}  // namespace ddprun::torch_adapter
