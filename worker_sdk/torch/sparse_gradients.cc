// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/torch/sparse_gradients.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/nn/modules/embedding.h>

#include <algorithm>
#include <vector>

#include "worker_sdk/torch/kept_on_error.h"
#include "worker_sdk/torch/tensor_collectives.h"
#include "worker_sdk/torch/tensor_exchange.h"

namespace ddprun::torch_adapter {
namespace {

// Values that replace a number of rows.
constexpr std::int64_t kUndefined = -1, kDense = -2;

constexpr const char* kSparseGradient = "a sparse gradient";

// Returns all ranks' rows, rank 0's first.
at::Tensor gathered_rows(const at::Tensor& mine, const at::Tensor& counts,
                         Communicator& communicator) {
  const auto* const count = counts.const_data_ptr<std::int64_t>();
  const std::int64_t longest = counts.max().item<std::int64_t>();
  std::vector<std::int64_t> sizes = mine.sizes().vec();
  sizes.front() = longest;
  const at::Tensor padded = at::zeros(sizes, mine.options());
  padded.narrow(0, 0, mine.size(0)).copy_(mine);
  const at::Tensor all = gathered(padded, communicator, kSparseGradient);
  std::vector<at::Tensor> rows;
  for (std::int64_t rank = 0; rank < counts.numel(); ++rank) {
    rows.push_back(all.narrow(0, rank * longest, std::max<std::int64_t>(count[rank], 0)));
  }
  return at::cat(rows);
}

std::int64_t count_of(const at::Tensor& gradient) {
  if (!gradient.defined()) return kUndefined;
  return gradient.is_sparse() ? gradient._nnz() : kDense;
}

at::Tensor dense_sum(const at::Tensor& parameter, const at::Tensor& gradient,
                     Communicator& communicator) {
  at::Tensor sum = at::zeros(parameter.sizes(), parameter.options().requires_grad(false));
  if (gradient.defined()) sum.add_(gradient);
  const KeptOnError kept(communicator, {sum});
  communicator.all_reduce(view_of(sum, "a gradient"), ReduceOp::kSum);
  return sum;
}

at::Tensor sparse_sum(const at::Tensor& parameter, const at::Tensor& gradient,
                      const at::Tensor& counts, Communicator& communicator) {
  const at::TensorOptions options = parameter.options().requires_grad(false);
  at::Tensor indices = at::empty({0}, options.dtype(at::kLong));
  at::Tensor values = at::empty({0, parameter.size(1)}, options);
  if (gradient.defined()) {
    indices = gradient.indices().squeeze(0);
    values = gradient.values();
  }
  indices = gathered_rows(indices, counts, communicator).unsqueeze(0);
  values = gathered_rows(values, counts, communicator);
  return at::sparse_coo_tensor(indices, values, parameter.sizes(), options.layout(at::kSparse))
      .coalesce();
}

}  // namespace

bool has_sparse_gradient(const torch::nn::Module& layer) {
  if (const auto* embedding = layer.as<torch::nn::Embedding>()) return embedding->options.sparse();
  const auto* const bag = layer.as<torch::nn::EmbeddingBag>();
  return bag != nullptr && bag->options.sparse();
}

void average_sparse_gradient(const at::Tensor& parameter, const std::string& name, double factor,
                             Communicator& communicator) {
  const c10::NoGradGuard no_grad;
  at::Tensor& gradient = parameter.mutable_grad();
  if (gradient.defined()) {
    check_plain_gradient(parameter, name, {.be_sparse = true});
    if (gradient.is_sparse()) gradient = gradient.coalesce();
  }
  const at::Tensor count = at::full({1}, count_of(gradient), at::kLong).to(parameter.device());
  const at::Tensor counts = gathered(count, communicator, kSparseGradient).cpu();
  const auto* const first = counts.const_data_ptr<std::int64_t>();
  const auto* const last = first + counts.numel();
  if (std::all_of(first, last, [](std::int64_t each) { return each == kUndefined; })) return;
  const bool is_dense = std::find(first, last, kDense) != last;
  gradient = is_dense ? dense_sum(parameter, gradient, communicator)
                      : sparse_sum(parameter, gradient, counts, communicator);
  (is_dense ? gradient : gradient.values()).mul_(factor);
}

}  // namespace ddprun::torch_adapter
