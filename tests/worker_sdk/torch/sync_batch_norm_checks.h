// SPDX-License-Identifier: Apache-2.0
// Compares SyncBatchNorm on each rank's part of a batch with torch::nn::BatchNorm on the whole
// batch.
#pragma once

#include <torch/torch.h>

#include <string>
#include <vector>

#include "common/text.h"
#include "tests/worker_sdk/torch/worker_program.h"
#include "worker_sdk/torch/parallel/sync_batch_norm.h"
#include "worker_sdk/torch/tensor_collectives.h"

namespace ddprun::testing {

// Numbers about 3, which no generator of the process draws. Their squares are far from their
// variance.
inline torch::Tensor wavy(at::IntArrayRef sizes, torch::Dtype dtype) {
  const torch::Tensor numbers = torch::arange(c10::multiply_integers(sizes), torch::kDouble);
  return (torch::sin(numbers * 1.7) + 3 + torch::cos(numbers * 0.01)).view(sizes).to(dtype);
}

struct BatchNormCase {
  std::string name;
  std::vector<std::int64_t> rows;  // rows of each rank's part; each rank has an entry
  std::vector<std::int64_t> rest;  // channels, then the other dimensions
  torch::Dtype dtype = torch::kDouble;
  std::optional<double> momentum = 0.1;
  bool affine = true;
};

inline torch::Tensor whole_norm(torch::nn::Module& module, const torch::Tensor& input) {
  if (input.dim() == 2) return module.as<torch::nn::BatchNorm1d>()->forward(input);
  return module.as<torch::nn::BatchNorm2d>()->forward(input);
}

inline void check_sync_batch_norm(Communicator& communicator, const BatchNormCase& each) {
  const auto options =
      torch::nn::BatchNormOptions(each.rest[0]).momentum(each.momentum).affine(each.affine);
  const torch::Dtype kept = each.dtype == torch::kDouble ? torch::kDouble : torch::kFloat;
  SyncBatchNorm ours(options, communicator);
  std::shared_ptr<torch::nn::Module> theirs;
  if (each.rest.size() == 1) {
    theirs = torch::nn::BatchNorm1d(options).ptr();
  } else {
    theirs = torch::nn::BatchNorm2d(options).ptr();
  }
  ours->to(kept);
  theirs->to(kept);
  std::int64_t num_rows = 0, first = 0;
  for (int rank = 0; rank < communicator.size(); ++rank) {
    if (rank == communicator.rank()) first = num_rows;
    num_rows += each.rows[static_cast<std::size_t>(rank)];
  }
  const std::int64_t mine = each.rows[static_cast<std::size_t>(communicator.rank())];
  std::vector<std::int64_t> sizes{num_rows};
  sizes.insert(sizes.end(), each.rest.begin(), each.rest.end());
  const double tolerance = each.dtype == torch::kDouble  ? 1e-11
                           : each.dtype == torch::kFloat ? 1e-4
                                                         : 3e-2;
  const auto close = [&](const torch::Tensor& p, const torch::Tensor& q, const std::string& what) {
    expect(p.sizes() == q.sizes(), each.name + ": the shape of " + what);
    if (p.numel() == 0) return;
    const double error = (p - q).to(torch::kDouble).abs().max().item<double>();
    expect(error <= tolerance, concat(each.name, ": ", what, " is off by ", error));
  };
  for (int step = 0; step < 3; ++step) {
    const torch::Tensor batch = wavy(sizes, each.dtype) * (step + 1);
    torch::Tensor whole = batch.clone().requires_grad_();
    torch::Tensor part = batch.narrow(0, first, mine).clone().requires_grad_();
    ours->zero_grad();
    theirs->zero_grad();
    const torch::Tensor output = ours(part), expected = whole_norm(*theirs, whole);
    expect(output.scalar_type() == each.dtype, each.name + ": the output's dtype");
    close(output, expected.narrow(0, first, mine), "output");
    const torch::Tensor slope = torch::cos(wavy(sizes, torch::kDouble) * 5).to(each.dtype);
    (output * slope.narrow(0, first, mine)).sum().backward();
    (expected * slope).sum().backward();
    close(part.grad(), whole.grad().narrow(0, first, mine), "gradient of the input");
    for (const auto& parameter : ours->named_parameters()) {
      const torch::Tensor sum =
          torch_adapter::all_reduced(parameter.value().grad().clone(), communicator);
      close(sum, theirs->named_parameters()[parameter.key()].grad(),
            "gradient of " + parameter.key());
    }
    for (const auto& buffer : ours->named_buffers()) {
      close(buffer.value(), theirs->named_buffers()[buffer.key()], buffer.key());
    }
  }
  ours->eval();
  theirs->eval();
  const torch::Tensor batch = wavy(sizes, each.dtype);
  close(ours(batch), whole_norm(*theirs, batch), "output in evaluation");
}

inline void check_sync_batch_norms(Communicator& communicator) {
  const std::vector<BatchNormCase> cases = {
      {"images", {3, 3, 3}, {5, 4, 6}},
      {"rows, of which ranks have different numbers", {4, 1, 2}, {7}},
      {"a rank without any", {6, 0, 2}, {3, 2, 2}},
      {"float32", {3, 3, 3}, {5, 4, 6}, torch::kFloat},
      {"bfloat16", {8, 8, 8}, {4, 5, 5}, torch::kBFloat16},
      {"a cumulative average", {2, 3, 4}, {5}, torch::kDouble, std::nullopt},
      {"without weights", {2, 3, 4}, {5, 2, 2}, torch::kDouble, 0.1, false},
  };
  for (const BatchNormCase& each : cases) check_sync_batch_norm(communicator, each);
  SyncBatchNorm layer(torch::nn::BatchNormOptions(4), communicator);
  expect_contains(error_of([&] {
                    layer(torch::zeros({3, 5}));
                  }),
                  "SyncBatchNorm of 4 channels: the input has the shape [3, 5]");
}

}  // namespace ddprun::testing
