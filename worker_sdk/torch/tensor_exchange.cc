// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/torch/tensor_exchange.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "common/error.h"
#include "common/text.h"
#include "common/throw_error.h"
#include "worker_sdk/torch/kept_on_error.h"

namespace ddprun::torch_adapter {
namespace {

// In the order of DType.
constexpr at::ScalarType kScalarTypes[] = {
    at::kFloat, at::kDouble, at::kHalf, at::kBFloat16,      at::kChar,       at::kByte,
    at::kInt,   at::kLong,   at::kBool, at::kFloat8_e4m3fn, at::kFloat8_e5m2};
static_assert(std::size(kScalarTypes) == kNumDTypes);

constexpr std::int64_t kAlignment = 64;
constexpr std::size_t kTravelsAloneBytes = 1 << 20;
constexpr std::int64_t kStagingBytes = 64 << 20;  // memory for tensors that travel together

std::int64_t dense_size(const at::Tensor& tensor) {
  return tensor.numel() * static_cast<std::int64_t>(tensor.element_size());
}

bool travels_alone(const at::Tensor& tensor, c10::Device device) {
  return tensor.nbytes() >= kTravelsAloneBytes && tensor.device() == device &&
         tensor.is_non_overlapping_and_dense();
}

// Returns its bytes in the memory of tensors that travel together.
std::int64_t staging_size(const at::Tensor& tensor, c10::Device device) {
  if (travels_alone(tensor, device)) return 0;
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

// On CUDA _foreach_copy_ has no kernel for rare dtypes such as uint16.
bool has_foreach_copy(at::ScalarType dtype) {
  constexpr at::ScalarType kDTypes[] = {at::kFloat, at::kDouble, at::kHalf,  at::kBFloat16,
                                        at::kLong,  at::kInt,    at::kShort, at::kChar,
                                        at::kByte,  at::kBool};
  return std::ranges::find(kDTypes, dtype) != std::end(kDTypes);
}

// Copies a list of tensors to another; each list has one dtype.
void copy_all(const std::vector<at::Tensor>& to, const std::vector<at::Tensor>& from) {
  if (has_foreach_copy(to.front().scalar_type())) return at::_foreach_copy_(to, from);
  for (std::size_t i = 0; i < to.size(); ++i) to[i].copy_(from[i]);
}

at::Tensor bytes_from(const void* data, std::size_t size, c10::Device device) {
  // No thread waits for the copy to a GPU. LibTorch reuses pinned memory only after the copy has
  // ended; pageable memory it reuses before.
  const at::Tensor bytes =
      at::empty({static_cast<std::int64_t>(size)},
                at::TensorOptions().dtype(at::kByte).pinned_memory(device.is_cuda()));
  std::memcpy(bytes.mutable_data_ptr(), data, size);
  return bytes.to(device, /*non_blocking=*/true);
}

}  // namespace

DType dtype_of(const at::TensorBase& tensor, const std::string& what) {
  const auto* const found = std::ranges::find(kScalarTypes, tensor.scalar_type());
  if (found != std::end(kScalarTypes)) return static_cast<DType>(found - kScalarTypes);
  throw_error(ErrorCode::kUnsupported, what, " has dtype ", c10::toString(tensor.scalar_type()),
              ": communicators don't know it; use float32, float64, float16, bfloat16, "
              "int64, int32, int8, uint8 or bool, at::view_as_real() of complex");
}

DType gradient_dtype_of(const at::TensorBase& parameter, const std::string& what) {
  switch (parameter.scalar_type()) {
    case at::kFloat:
    case at::kDouble:
    case at::kHalf:
    case at::kBFloat16:
      return dtype_of(parameter, what);
    case at::kComplexFloat:
      return DType::kFloat32;
    case at::kComplexDouble:
      return DType::kFloat64;
    default:
      throw_error(ErrorCode::kUnsupported, what, " has dtype ",
                  c10::toString(parameter.scalar_type()),
                  ": its gradient can't be averaged; use float32, float64, float16, "
                  "bfloat16, complex64 or complex128, or freeze it");
  }
}

void check_plain_gradient(const at::Tensor& parameter, const std::string& name, GradientMay may) {
  const at::Tensor& gradient = parameter.mutable_grad();
  const auto refuse = [&name](const auto&... why) {
    throw_error(ErrorCode::kUnsupported, "the gradient of ", name, why...);
  };
  if (gradient.layout() != c10::kStrided && !(may.be_sparse && gradient.is_sparse())) {
    refuse(
        " is sparse: only DistributedDataParallel takes such a one, of an Embedding or "
        "EmbeddingBag "
        "layer and without DdpOptions::zero; use a dense one (sparse(false) in embedding options)");
  }
  if (!may.have_graph && gradient.requires_grad()) {
    refuse(
        " has a graph of its own (backward with create_graph), which ends where ranks are "
        "averaged. Take torch::autograd::grad() with create_graph for a penalty, and let the "
        "last backward be without");
  }
  if (gradient.scalar_type() != parameter.scalar_type()) {
    refuse(" is ", c10::toString(gradient.scalar_type()), ", the parameter ",
           c10::toString(parameter.scalar_type()),
           ": averages and updates are of the parameter's dtype");
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

at::Tensor tensor_over(const TensorView& view) {
  const bool is_on_host = view.device.kind == Device::Kind::kCpu;
  const c10::Device device =
      is_on_host ? c10::Device(c10::kCPU)
                 : c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(view.device.index));
  return at::from_blob(
      view.data, {static_cast<std::int64_t>(view.count)},
      at::TensorOptions().dtype(kScalarTypes[static_cast<std::size_t>(view.dtype)]).device(device));
}

void copy_times(const at::Tensor& place, const at::Tensor& source, double factor) {
  if (factor == 1) {
    place.copy_(source);
    return;
  }
  if (source.device() != place.device()) {  // no kernel takes tensors of both devices
    place.copy_(source).mul_(factor);
    return;
  }
  at::Tensor out = place;
  at::mul_out(out, source, at::native::wrapped_scalar_tensor(factor));
}

TensorBroadcast::TensorBroadcast(std::vector<at::Tensor> tensors, c10::Device device)
    : tensors_(std::move(tensors)), device_(device) {}

void TensorBroadcast::lay_out() {
  alone_.clear();
  empty_.clear();
  kinds_.clear();
  std::int64_t size = 0;
  for (const at::Tensor& tensor : tensors_) size += staging_size(tensor, device_);
  staging_ = empty_bytes(size, device_);
  std::int64_t offset = 0;
  for (const at::Tensor& tensor : tensors_) {
    if (tensor.numel() == 0) {
      empty_.push_back(tensor);
      continue;
    }
    if (travels_alone(tensor, device_)) {
      alone_.push_back(tensor);
      continue;
    }
    const auto is_its = [&](const Kind& kind) {
      return kind.tensors.front().scalar_type() == tensor.scalar_type() &&
             kind.tensors.front().device() == tensor.device();
    };
    auto kind = std::ranges::find_if(kinds_, is_its);
    if (kind == kinds_.end()) kind = kinds_.insert(kinds_.end(), Kind());
    const at::Tensor place = staging_.narrow(0, offset, dense_size(tensor));
    kind->tensors.push_back(tensor);
    kind->places.push_back(place.view(tensor.scalar_type()).view(tensor.sizes()));
    offset += staging_size(tensor, device_);
  }
}

// Returns false if a tensor has got another size or layout since, or was moved.
bool TensorBroadcast::fits() const {
  const auto is_alone = [&](const at::Tensor& tensor) { return travels_alone(tensor, device_); };
  const auto is_empty = [](const at::Tensor& tensor) { return tensor.numel() == 0; };
  if (!std::ranges::all_of(alone_, is_alone)) return false;
  if (!std::ranges::all_of(empty_, is_empty)) return false;
  for (const Kind& kind : kinds_) {
    for (std::size_t i = 0; i < kind.tensors.size(); ++i) {
      const at::Tensor &tensor = kind.tensors[i], &place = kind.places[i];
      if (tensor.sizes() != place.sizes() || tensor.scalar_type() != place.scalar_type() ||
          tensor.device() != kind.tensors.front().device()) {
        return false;
      }
    }
  }
  return true;
}

void TensorBroadcast::run(int root, Communicator& communicator) {
  if (communicator.size() == 1) return;
  const c10::NoGradGuard no_grad;
  if (!staging_.defined() || !fits()) lay_out();
  std::vector<at::Tensor> sent = alone_;
  sent.push_back(staging_);
  const KeptOnError kept(communicator, sent);
  for (const at::Tensor& tensor : alone_) communicator.broadcast(bytes_of(tensor), root);
  if (kinds_.empty()) return;
  if (communicator.rank() == root) {
    for (const Kind& kind : kinds_) copy_all(kind.places, kind.tensors);
  }
  communicator.broadcast(bytes_of(staging_), root);
  if (communicator.rank() == root) return;
  for (const Kind& kind : kinds_) copy_all(kind.tensors, kind.places);
}

void broadcast_tensors(const std::vector<at::Tensor>& tensors, int root, Communicator& communicator,
                       c10::Device device) {
  if (communicator.size() == 1) return;
  std::vector<at::Tensor> some;
  std::int64_t size = 0;
  for (const at::Tensor& tensor : tensors) {
    some.push_back(tensor);
    size += staging_size(tensor, device);
    if (size < kStagingBytes) continue;
    TensorBroadcast(std::exchange(some, {}), device).run(root, communicator);
    size = 0;
  }
  TensorBroadcast(std::move(some), device).run(root, communicator);
}

void broadcast_bytes(std::string& bytes, int root, Communicator& communicator, c10::Device device) {
  const std::uint64_t my_size = bytes.size();
  const at::Tensor size = bytes_from(&my_size, sizeof my_size, device);
  const KeptOnError size_kept(communicator, {size});
  communicator.broadcast(bytes_of(size), root);
  std::uint64_t root_size = 0;
  std::memcpy(&root_size, size.cpu().const_data_ptr(), sizeof root_size);
  if (root_size == 0) return bytes.clear();
  bytes.resize(root_size);
  const at::Tensor content = bytes_from(bytes.data(), bytes.size(), device);
  const KeptOnError content_kept(communicator, {content});
  communicator.broadcast(bytes_of(content), root);
  std::memcpy(bytes.data(), content.cpu().const_data_ptr(), bytes.size());
}

at::Tensor reduced_bytes(const std::vector<std::uint8_t>& bytes, ReduceOp op,
                         Communicator& communicator, c10::Device device) {
  const at::Tensor all = bytes_from(bytes.data(), bytes.size(), device);
  const KeptOnError kept(communicator, {all});
  communicator.all_reduce(bytes_of(all), op);
  return all;
}

std::vector<std::uint8_t> bytes_on_host(const at::Tensor& bytes) {
  const at::Tensor here = bytes.cpu();
  const auto* first = here.const_data_ptr<std::uint8_t>();
  return {first, first + here.numel()};
}

void reduce_bytes(std::vector<std::uint8_t>& bytes, ReduceOp op, Communicator& communicator,
                  c10::Device device) {
  if (bytes.empty()) return;
  bytes = bytes_on_host(reduced_bytes(bytes, op, communicator, device));
}

std::vector<std::uint8_t> gather_bytes(std::uint8_t mine, Communicator& communicator,
                                       c10::Device device) {
  const at::Tensor input = bytes_from(&mine, 1, device);
  const at::Tensor output = empty_bytes(communicator.size(), device);
  const KeptOnError kept(communicator, {input, output});
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
  const KeptOnError kept(communicator, {mine, all});
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
