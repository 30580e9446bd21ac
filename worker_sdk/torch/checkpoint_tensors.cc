// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/torch/checkpoint_tensors.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <string_view>
#include <utility>

#include "common/error.h"
#include "common/log.h"

namespace ddprun::torch_adapter {
namespace {

// As safetensors has it.
std::string scalar_name(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
      return "F64";
    case at::kFloat:
      return "F32";
    case at::kHalf:
      return "F16";
    case at::kBFloat16:
      return "BF16";
    case at::kLong:
      return "I64";
    case at::kInt:
      return "I32";
    case at::kShort:
      return "I16";
    case at::kChar:
      return "I8";
    case at::kByte:
      return "U8";
    case at::kBool:
      return "BOOL";
    default:
      throw Error(ErrorCode::kUnsupported,
                  concat("a checkpoint can't hold tensors of dtype ", c10::toString(dtype)));
  }
}

// `tensor` as a file describes it; without its bytes.
TensorBytes outline(const NamedTensor& each) {
  return {.name = each.name,
          .dtype = scalar_name(each.tensor.scalar_type()),
          .shape = each.tensor.sizes().vec(),
          .bytes = {}};
}

std::string tensor_text(const TensorBytes& tensor) {
  return concat(tensor.dtype, " ", at::IntArrayRef(tensor.shape));
}

using ByName = std::map<std::string_view, const TensorBytes*>;

ByName by_name(const std::vector<TensorBytes>& tensors) {
  ByName found;
  for (const TensorBytes& each : tensors) found[each.name] = &each;
  return found;
}

// Before the names of a rank's own tensors.
constexpr std::string_view kOwn = "own:";

bool is_own(std::string_view name) { return name.starts_with(kOwn); }

}  // namespace

void check_savable(const Metadata& metadata, const std::vector<NamedTensor>& tensors) {
  std::vector<std::string> names;
  for (const NamedTensor& each : tensors) names.push_back(each.name);
  std::string problem = encoding_problem(metadata, names);
  for (const NamedTensor& each : tensors) {
    if (!problem.empty()) break;
    if (!each.tensor.defined())
      problem = concat("the tensor ", each.name, " is undefined");
    else if (each.tensor.layout() != c10::kStrided)
      problem = concat("the tensor ", each.name, " is sparse: give a dense one");
  }
  if (!problem.empty()) throw Error(ErrorCode::kInvalidArgument, "a checkpoint: " + problem);
}

void check_replicated(const Metadata& metadata, const std::vector<NamedTensor>& tensors) {
  check_savable(metadata, tensors);
  const auto refuse = [](const std::string& what) {
    throw Error(ErrorCode::kInvalidArgument, concat("a checkpoint: ", what, " is its own"));
  };
  for (const char* key : {"shards", "save"}) {
    if (metadata.count(key) > 0) refuse(concat("the key ", key, " of the metadata"));
  }
  for (const NamedTensor& each : tensors) {
    if (is_own(each.name)) refuse(concat("the name ", each.name, ", for what begins with ", kOwn));
  }
}

std::vector<NamedTensor> share_of(const std::vector<NamedTensor>& tensors, int rank, int size) {
  std::vector<std::size_t> bytes(static_cast<std::size_t>(size), 0);
  std::vector<NamedTensor> share;
  for (const NamedTensor& each : tensors) {
    const auto lightest = std::min_element(bytes.begin(), bytes.end());
    *lightest += each.tensor.nbytes();
    if (lightest - bytes.begin() == rank) share.push_back(each);
  }
  return share;
}

std::vector<NamedTensor> with_own_names(const std::vector<NamedTensor>& own) {
  std::vector<NamedTensor> named;
  for (const NamedTensor& each : own) named.push_back({concat(kOwn, each.name), each.tensor});
  return named;
}

SavedTensors divide(const std::vector<TensorBytes>& tensors) {
  SavedTensors saved;
  for (const TensorBytes& each : tensors) {
    if (!is_own(each.name)) {
      saved.replicated.push_back(each);
      continue;
    }
    saved.own.push_back(each);
    saved.own.back().name.erase(0, kOwn.size());
  }
  return saved;
}

std::string first_difference(const std::vector<TensorBytes>& there,
                             const std::vector<NamedTensor>& here) {
  ByName left = by_name(there);
  for (const NamedTensor& each : here) {
    const TensorBytes mine = outline(each);
    const auto found = left.find(mine.name);
    if (found == left.end()) return concat("it has no ", mine.name);
    const TensorBytes& saved = *found->second;
    if (saved.dtype != mine.dtype || saved.shape != mine.shape) {
      return concat(mine.name, " is ", tensor_text(saved), " there, ", tensor_text(mine), " here");
    }
    left.erase(found);
  }
  return left.empty() ? "" : concat(left.begin()->first, " is none of this model's");
}

void copy_into(const std::vector<NamedTensor>& here, const std::vector<TensorBytes>& there) {
  const c10::NoGradGuard no_grad;
  const ByName saved = by_name(there);
  for (const auto& [name, tensor] : here) {
    const TensorBytes& from = *saved.at(name);
    const auto options = at::TensorOptions().dtype(tensor.scalar_type());
    const at::Tensor on_host = at::empty(from.shape, options);
    // Not over the file's bytes: they need not be aligned.
    std::memcpy(on_host.mutable_data_ptr(), from.bytes.data(), from.bytes.size());
    tensor.copy_(on_host);
  }
}

std::vector<TensorBytes> HostCopies::take(const std::vector<NamedTensor>& tensors) {
  const c10::NoGradGuard no_grad;
  std::vector<TensorBytes> views;
  copies_.resize(tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor source = tensors[i].tensor.detach();
    at::Tensor& copy = copies_[i];
    if (!copy.defined() || copy.sizes() != source.sizes() || copy.dtype() != source.dtype()) {
      copy = at::empty(
          source.sizes(),
          at::TensorOptions().dtype(source.scalar_type()).pinned_memory(source.is_cuda()));
    }
    if (source.is_cpu() && source.is_contiguous()) {
      // Not LibTorch's threads: on busy cores each of their meetings costs a time slice.
      std::memcpy(copy.mutable_data_ptr(), source.const_data_ptr(), source.nbytes());
    } else {
      copy.copy_(source);
    }
    views.push_back(outline(tensors[i]));
    views.back().bytes = {static_cast<const char*>(copy.const_data_ptr()), copy.nbytes()};
  }
  return views;
}

}  // namespace ddprun::torch_adapter
