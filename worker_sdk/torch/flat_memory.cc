// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/torch/flat_memory.h"

#include <ATen/ATen.h>
#include <sys/mman.h>

#include <set>
#include <string>
#include <unordered_map>
#include <utility>

#include "common/error.h"
#include "worker_sdk/core/large_memory.h"
#include "worker_sdk/torch/tensor_exchange.h"
#include "worker_sdk/torch/update_rule_impl.h"

namespace ddprun::torch_adapter {

at::Tensor flat_memory(std::int64_t count, const at::TensorOptions& options) {
  if (!options.device().is_cpu()) return at::zeros({count}, options);
  const std::size_t size_bytes = static_cast<std::size_t>(count) * options.dtype().itemsize();
  const auto give_back = [size_bytes](void* data) { ::munmap(data, size_bytes); };
  return at::from_blob(map_large_memory(size_bytes), {count}, give_back, options);
}

at::Tensor piece_of(const at::Tensor& flat, std::size_t offset, std::int64_t count) {
  return flat.narrow(0, static_cast<std::int64_t>(offset), count);
}

std::vector<std::int64_t> dense_strides(const at::Tensor& tensor) {
  if (tensor.is_non_overlapping_and_dense()) return tensor.strides().vec();
  std::vector<std::int64_t> strides(static_cast<std::size_t>(tensor.dim()));
  std::int64_t next = 1;
  for (std::size_t i = strides.size(); i-- > 0;) {
    strides[i] = next;
    next *= tensor.size(static_cast<std::int64_t>(i));
  }
  return strides;
}

std::vector<GroupedParameter> grouped_parameters(std::vector<ParameterGroup> groups) {
  for (const ParameterGroup& group : groups) check_rule(group.rule);
  std::vector<GroupedParameter> all;
  std::unordered_map<const void*, std::size_t> group_of;
  std::set<std::string> names;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    for (NamedTensor& parameter : groups[g].parameters) {
      const at::Tensor& tensor = parameter.tensor;
      const auto [known, is_new] = group_of.emplace(tensor.unsafeGetTensorImpl(), g);
      if (!is_new && known->second != g) {
        throw Error(ErrorCode::kInvalidArgument,
                    "parameter " + parameter.name + " is in two groups of the optimiser");
      }
      if (!is_new || tensor.numel() == 0) continue;
      if (!names.insert(parameter.name).second) {
        throw Error(ErrorCode::kInvalidArgument,
                    "two parameters of the optimiser are named " + parameter.name);
      }
      dtype_of(tensor, "parameter " + parameter.name);
      all.push_back({std::move(parameter), g});
    }
  }
  return all;
}

}  // namespace ddprun::torch_adapter
