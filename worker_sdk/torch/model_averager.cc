// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/torch/model_averager.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <utility>

#include "common/throw_error.h"
#include "worker_sdk/ddp/average_plan.h"
#include "worker_sdk/torch/current_stream.h"
#include "worker_sdk/torch/tensor_exchange.h"

namespace ddprun {
namespace {

constexpr std::size_t kAlignmentBytes = 64;

std::size_t padded_size(std::size_t size_bytes) {
  return (size_bytes + kAlignmentBytes - 1) / kAlignmentBytes * kAlignmentBytes;
}

}  // namespace

ModelAverager::ModelAverager(const std::vector<NamedTensor>& tensors, Communicator& communicator,
                             const AveragerOptions& options)
    : communicator_(communicator) {
  communicator.follow_stream(current_torch_stream);
  // Pieces are made for one dtype after the other, for a piece has one dtype.
  for (const DType dtype : {DType::kFloat64, DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    add_pieces(tensors, dtype, options.bucket_bytes);
  }
  if (tensors_.empty()) return;
  device_ = tensors_.front().device();
  block_ = communicator.allocate(size_bytes_);
  for (const Piece& piece : pieces_) {
    std::size_t offset = piece.offset_bytes;
    for (std::size_t i = piece.first; i < piece.first + piece.count; ++i) {
      places_.push_back(
          at::from_blob(address(offset), tensors_[i].sizes(),
                        at::TensorOptions().dtype(tensors_[i].scalar_type()).device(device_)));
      offset += padded_size(tensors_[i].nbytes());
    }
  }
}

void ModelAverager::average() {
  launch(false);
  finish();
}

void ModelAverager::launch(bool keeps_own) {
  if (is_under_way_) throw_invalid("averager: start() twice");
  const c10::NoGradGuard no_grad;
  is_under_way_ = true;
  own_.clear();
  const AveragePlan average = average_plan(communicator_.backend(), communicator_.size());
  for (Piece& piece : pieces_) {
    for (std::size_t i = piece.first; i < piece.first + piece.count; ++i) {
      torch_adapter::copy_times(places_[i], tensors_[i], average.factor);
      if (keeps_own) own_.push_back(tensors_[i].clone());
    }
    const TensorView view{.data = address(piece.offset_bytes),
                          .count = piece.size_bytes / size_of(piece.dtype),
                          .dtype = piece.dtype,
                          .device = torch_adapter::comm_device_of(places_[piece.first])};
    piece.work = communicator_.all_reduce(view, average.op, {.async = true});
    sent_bytes_ += piece.size_bytes;
  }
}

void ModelAverager::finish() {
  if (!is_under_way_) throw_invalid("averager: finish() before start()");
  const c10::NoGradGuard no_grad;
  for (Piece& piece : pieces_) {
    std::exchange(piece.work, nullptr)->wait();
    for (std::size_t i = piece.first; i < piece.first + piece.count; ++i) {
      at::Tensor& tensor = tensors_[i];
      if (own_.empty()) {
        tensor.copy_(places_[i]);
      } else {
        tensor.add_(places_[i].sub_(own_[i]));
      }
    }
  }
  own_.clear();
  is_under_way_ = false;
}

void ModelAverager::add_pieces(const std::vector<NamedTensor>& tensors, DType dtype,
                               std::size_t bucket_bytes) {
  bool is_open = false;
  for (const NamedTensor& each : tensors) {
    if (each.tensor.numel() == 0) continue;
    if (torch_adapter::gradient_dtype_of(each.tensor, each.name) != dtype) continue;
    if (!is_open) {
      pieces_.push_back({.first = tensors_.size(), .dtype = dtype, .offset_bytes = size_bytes_});
    }
    Piece& piece = pieces_.back();
    tensors_.push_back(each.tensor);
    ++piece.count;
    piece.size_bytes += padded_size(each.tensor.nbytes());
    size_bytes_ += padded_size(each.tensor.nbytes());
    is_open = piece.size_bytes < bucket_bytes;
  }
}

void* ModelAverager::address(std::size_t offset_bytes) const {
  return static_cast<char*>(block_->data()) + offset_bytes;
}

}  // namespace ddprun
