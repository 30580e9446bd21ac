// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/torch/tensor_exchange.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "common/error.h"
#include "common/log.h"

namespace ddprun::torch_adapter {
namespace {

constexpr std::int64_t kAlignment = 64;
constexpr std::size_t kTravelsAloneBytes = 1 << 20;
constexpr std::int64_t kStagingBytes = 64 << 20;  // that those which travel together take

std::int64_t dense_size(const at::Tensor& tensor) {
  return tensor.numel() * static_cast<std::int64_t>(tensor.element_size());
}

std::int64_t padded_size(const at::Tensor& tensor) {
  return (dense_size(tensor) + kAlignment - 1) / kAlignment * kAlignment;
}

at::Tensor empty_bytes(std::int64_t size, c10::Device device) {
  return at::empty({size}, at::TensorOptions().dtype(at::kByte).device(device));
}

TensorView bytes_of(const at::Tensor& dense) {
  return {.data = dense.mutable_data_ptr(),
          .count = dense.nbytes(),
          .dtype = DType::kUInt8,
          .device = comm_device_of(dense)};
}

// `size` bytes with their padding.
void broadcast_together(const std::vector<at::Tensor>& tensors, std::int64_t size, int root,
                        Communicator& communicator, c10::Device device) {
  const at::Tensor staging = empty_bytes(size, device);
  std::vector<at::Tensor> places;
  std::int64_t offset = 0;
  for (const at::Tensor& tensor : tensors) {
    const at::Tensor place = staging.narrow(0, offset, dense_size(tensor));
    places.push_back(place.view(tensor.scalar_type()).view(tensor.sizes()));
    offset += padded_size(tensor);
    if (communicator.rank() == root) places.back().copy_(tensor);
  }
  communicator.broadcast(bytes_of(staging), root);
  if (communicator.rank() == root) return;
  for (std::size_t i = 0; i < tensors.size(); ++i) tensors[i].copy_(places[i]);
}

at::Tensor bytes_from(const void* data, std::size_t size, c10::Device device) {
  at::Tensor bytes = empty_bytes(static_cast<std::int64_t>(size), c10::kCPU);
  std::memcpy(bytes.mutable_data_ptr(), data, size);
  return bytes.to(device);
}

}  // namespace

DType dtype_of(const at::TensorBase& tensor, const std::string& what) {
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return DType::kFloat32;
    case at::kDouble:
      return DType::kFloat64;
    case at::kHalf:
      return DType::kFloat16;
    case at::kBFloat16:
      return DType::kBFloat16;
    default:
      throw Error(ErrorCode::kUnsupported,
                  concat(what, " has dtype ", c10::toString(tensor.scalar_type()),
                         ": its gradient can't be averaged; use float32, float64, float16 or "
                         "bfloat16, or freeze it"));
  }
}

Device comm_device_of(const at::TensorBase& tensor) {
  if (tensor.is_cuda()) return {.kind = Device::Kind::kCuda, .index = tensor.get_device()};
  return {};
}

TensorView view_of(const at::Tensor& contiguous, const std::string& what) {
  return {.data = contiguous.mutable_data_ptr(),
          .count = static_cast<std::size_t>(contiguous.numel()),
          .dtype = dtype_of(contiguous, what),
          .device = comm_device_of(contiguous)};
}

void copy_times(const at::Tensor& place, const at::Tensor& source, double factor) {
  if (factor == 1) {
    place.copy_(source);
    return;
  }
  at::Tensor out = place;
  at::mul_out(out, source, at::native::wrapped_scalar_tensor(factor));
}

void broadcast_tensors(const std::vector<at::Tensor>& tensors, int root, Communicator& communicator,
                       c10::Device device) {
  if (communicator.size() == 1 || tensors.empty()) return;
  const c10::NoGradGuard no_grad;
  std::vector<at::Tensor> together;
  std::int64_t size = 0;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.numel() == 0) continue;
    const bool is_large = tensor.nbytes() >= kTravelsAloneBytes;
    if (is_large && tensor.device() == device && tensor.is_non_overlapping_and_dense()) {
      communicator.broadcast(bytes_of(tensor), root);
      continue;
    }
    together.push_back(tensor);
    size += padded_size(tensor);
    if (size < kStagingBytes) continue;
    broadcast_together(together, size, root, communicator, device);
    together.clear();
    size = 0;
  }
  if (!together.empty()) broadcast_together(together, size, root, communicator, device);
}

void broadcast_bytes(std::string& bytes, int root, Communicator& communicator, c10::Device device) {
  const std::uint64_t my_size = bytes.size();
  const at::Tensor size = bytes_from(&my_size, sizeof my_size, device);
  communicator.broadcast(bytes_of(size), root);
  std::uint64_t root_size = 0;
  std::memcpy(&root_size, size.cpu().const_data_ptr(), sizeof root_size);
  if (root_size == 0) return bytes.clear();
  bytes.resize(root_size);
  const at::Tensor content = bytes_from(bytes.data(), bytes.size(), device);
  communicator.broadcast(bytes_of(content), root);
  std::memcpy(bytes.data(), content.cpu().const_data_ptr(), bytes.size());
}

void reduce_bytes(std::vector<std::uint8_t>& bytes, ReduceOp op, Communicator& communicator,
                  c10::Device device) {
  if (bytes.empty()) return;
  const at::Tensor all = bytes_from(bytes.data(), bytes.size(), device);
  communicator.all_reduce(bytes_of(all), op);
  std::memcpy(bytes.data(), all.cpu().const_data_ptr(), bytes.size());
}

std::vector<std::uint8_t> gather_bytes(std::uint8_t mine, Communicator& communicator,
                                       c10::Device device) {
  const at::Tensor input = bytes_from(&mine, 1, device);
  const at::Tensor output = empty_bytes(communicator.size(), device);
  communicator.all_gather(bytes_of(input), bytes_of(output));
  const at::Tensor on_host = output.cpu();
  const auto* first = static_cast<const std::uint8_t*>(on_host.const_data_ptr());
  return {first, first + communicator.size()};
}

std::vector<std::string> gather_texts(const std::string& text, std::size_t limit_bytes,
                                      Communicator& communicator, c10::Device device) {
  std::string padded = text.substr(0, limit_bytes);
  padded.resize(limit_bytes, '\0');
  const at::Tensor mine = bytes_from(padded.data(), padded.size(), device);
  const at::Tensor all =
      empty_bytes(static_cast<std::int64_t>(limit_bytes) * communicator.size(), device);
  communicator.all_gather(bytes_of(mine), bytes_of(all));
  const at::Tensor on_host = all.cpu();
  const char* first = static_cast<const char*>(on_host.const_data_ptr());
  std::vector<std::string> texts;
  for (int rank = 0; rank < communicator.size(); ++rank) {
    const char* begin = first + static_cast<std::size_t>(rank) * limit_bytes;
    texts.emplace_back(begin, std::find(begin, begin + limit_bytes, '\0'));
  }
  return texts;
}

}  // namespace ddprun::torch_adapter
