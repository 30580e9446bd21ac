// SPDX-License-Identifier: Apache-2.0
// ModelAverager, average_gradients and SyncBatchNorm among ranks that are threads. Exit status 0:
// all checks hold.
#include <torch/torch.h>

#include <cmath>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/error.h"
#include "common/text.h"
#include "tests/support/fake_cuda.h"
#include "tests/support/fake_nccl.h"
#include "tests/worker_sdk/torch/sync_batch_norm_checks.h"
#include "tests/worker_sdk/torch/worker_program.h"
#include "worker_sdk/core/rank_threads.h"
#include "worker_sdk/torch/cast_hook.h"
#include "worker_sdk/torch/distributed_data_parallel.h"
#include "worker_sdk/torch/flat_optimizer.h"
#include "worker_sdk/torch/model_averager.h"
#include "worker_sdk/torch/parallel/average_gradients.h"
#include "worker_sdk/torch/sharded_optimizer.h"

using namespace ddprun;
using namespace ddprun::testing;

namespace averager_worker {
namespace {

torch::nn::Linear linear(double value) {
  const torch::NoGradGuard no_grad;
  torch::nn::Linear net(torch::nn::LinearOptions(7, 3));
  net->to(torch::kDouble);
  for (torch::Tensor& parameter : net->parameters()) parameter.fill_(value);
  return net;
}

// The batch of one rank and step. It doesn't use a generator of the process.
torch::Tensor batch_of(int rank, int step) {
  const torch::Tensor numbers = torch::arange(4 * 7, torch::kDouble).view({4, 7});
  return torch::sin(numbers * (rank + 1) + step * 0.37);
}

// With SGD without momentum, averaging the parameters after each step equals averaging the
// gradients.
void check_equals_averaged_gradients(Communicator& communicator) {
  torch::nn::Linear one = linear(0.5), other = linear(0.5);
  DistributedDataParallel ddp(*one, communicator);
  FlatOptimizer one_sgd({{trainable_parameters(*one), SgdRule{.lr = 0.05}}}, &ddp);
  FlatOptimizer other_sgd({{trainable_parameters(*other), SgdRule{.lr = 0.05}}});
  ModelAverager averager(trainable_parameters(*other), communicator);
  for (int step = 0; step < 30; ++step) {
    const torch::Tensor batch = batch_of(communicator.rank(), step);
    ddp.zero_grad();
    ddp(batch).tanh().pow(2).sum().backward();
    one_sgd.step();
    other_sgd.zero_grad();
    other(batch).tanh().pow(2).sum().backward();
    other_sgd.step();
    averager.average();
  }
  double largest = 0;
  for (std::size_t i = 0; i < one->parameters().size(); ++i) {
    const torch::Tensor difference = one->parameters()[i] - other->parameters()[i];
    largest = std::max(largest, difference.abs().max().item<double>());
  }
  expect((one->weight - 0.5).abs().max().item<double>() > 1e-3, "it has learned something");
  expect(largest < 1e-12, concat("the two differ by ", largest));
}

// Averages tensors of every dtype, in small pieces, a transposed one and an empty one.
void check_means(Communicator& communicator) {
  const int rank = communicator.rank(), size = communicator.size();
  std::vector<NamedTensor> tensors;
  const auto add = [&](torch::Tensor tensor) {
    tensors.push_back({concat("t", tensors.size()), std::move(tensor)});
  };
  for (const auto dtype : {torch::kFloat, torch::kDouble, torch::kHalf, torch::kBFloat16}) {
    add(torch::full({5, 3}, 2.0 * rank, dtype));
    add(torch::zeros({0}, dtype));
    add(torch::full({33}, 4.0 * rank, dtype));
  }
  torch::Tensor wide = torch::arange(6, torch::kFloat).view({2, 3}) * size * rank;
  add(wide.t());
  ModelAverager averager(tensors, communicator, {.bucket_bytes = 100});
  averager.average();
  const double mean = (size - 1) / 2.0;
  // Other backends round each rank's share.
  const double tolerance = communicator.backend() == "host" ? 0 : 1.0 / 128;
  for (const NamedTensor& each : tensors) {
    if (each.tensor.numel() == 0 || each.name == "t12") continue;
    const double expected = (each.tensor.dim() == 2 ? 2 : 4) * mean;
    const double error = (each.tensor.to(torch::kDouble) - expected).abs().max().item<double>();
    expect(error <= tolerance * expected, each.name + " is the mean");
  }
  const torch::Tensor expected = torch::arange(6, torch::kFloat).view({2, 3}) * size * mean;
  expect(torch::allclose(wide, expected, tolerance, 0), "a tensor keeps its layout");
  expect(averager.sent_bytes() >= 48 * 14, "bytes are counted");
  const std::uint64_t once = averager.sent_bytes();
  averager.average();
  expect(averager.sent_bytes() == 2 * once, "each time");
}

// The results of steps between start() and finish() are kept.
void check_delayed(Communicator& communicator) {
  const int rank = communicator.rank();
  torch::Tensor values = torch::full({1000}, 8.0 * rank, torch::kDouble);
  ModelAverager averager({{"values", values}}, communicator);
  averager.start();
  expect(averager.is_under_way(), "it is under way");
  expect_contains(error_of([&] { averager.start(); }), "start() twice");
  values += rank + 1;  // a step that only this rank does
  averager.finish();
  const double expected = 8.0 * (communicator.size() - 1) / 2 + rank + 1;
  expect((values - expected).abs().max().item<double>() < 1e-12, "the mean and the own step");
  expect_contains(error_of([&] { averager.finish(); }), "finish() before start()");
}

void check_average_gradients(Communicator& communicator) {
  std::vector<torch::Tensor> parameters;
  for (const auto dtype : {torch::kFloat, torch::kDouble, torch::kHalf}) {
    parameters.push_back(torch::zeros({5, 3}, dtype).requires_grad_(true));
    parameters.back().mutable_grad() = torch::full({5, 3}, 6.0 * communicator.rank(), dtype);
  }
  average_gradients(parameters, communicator);
  for (const torch::Tensor& each : parameters) {
    const torch::Tensor error = each.grad().to(torch::kDouble) - 3.0 * (communicator.size() - 1);
    expect(error.abs().max().item<double>() < 1e-3, "a gradient is the mean");
  }
}

torch::Tensor averaged(Communicator& communicator, const torch::Tensor& gradient) {
  torch::Tensor parameter = torch::zeros_like(gradient).requires_grad_(true);
  parameter.mutable_grad() = gradient.clone();
  average_gradients({parameter}, communicator);
  return parameter.grad();
}

// A share that is divided before it is summed, as with NCCL, beside a sum that is divided. NCCL's
// own average divides first, too, in an order of its own: nccl_host compares with it, on a GPU.
void check_order_of_division(Communicator& divides_last, Communicator& divides_first) {
  const int rank = divides_last.rank(), size = divides_last.size();
  // Numbers from 0.5 to 1, other ones on each rank.
  const torch::Tensor share =
      0.5 + 0.4999F * torch::sin(torch::arange(1000, torch::kFloat) * (rank + 1)).abs();
  const torch::Tensor one = averaged(divides_last, share), other = averaged(divides_first, share);
  if ((size & (size - 1)) == 0) expect(one.equal(other), "a power of two divides exactly");
  // From 0.5 to 1 a unit in the last place is 2^-24.
  const double units = (one - other).abs().max().item<double>() * (1 << 24);
  expect(units <= 3, concat("the two differ by ", units, " units in the last place"));

  const float inf = INFINITY;
  const torch::Tensor odd =
      rank == 0 ? torch::tensor({NAN, inf, -inf, 1.0F}) : torch::tensor({1.0F, 1.0F, inf, 1.0F});
  for (Communicator* each : {&divides_last, &divides_first}) {
    const torch::Tensor mean = averaged(*each, odd);
    expect(std::isnan(mean[0].item<float>()), "NaN stays NaN");
    expect(mean[1].item<float>() == inf, "infinity stays infinite");
    expect(size == 1 ? mean[2].item<float>() == -inf : std::isnan(mean[2].item<float>()),
           "infinities that meet are NaN");
    expect(std::abs(mean[3].item<float>() - 1) < 1e-6F, "a number beside them is as it was");
  }
}

void train_one_step(Communicator& communicator, const DdpOptions& options) {
  torch::nn::Linear net(7, 3);
  DistributedDataParallel<torch::nn::LinearImpl> ddp(*net, communicator, options);
  std::optional<ShardedOptimizer> optimizer;
  if (options.zero != ZeroStage::kOff) {
    optimizer.emplace(std::vector<ParameterGroup>{{trainable_parameters(*net), AdamWRule()}}, ddp);
  }
  ddp(torch::ones({2, 7})).sum().backward();
  if (optimizer) optimizer->step();
}

// All that 8 ranks on 2 nodes ask of NCCL is for NVLS, but for the parameters that rank 0 sends.
void check_nvls() {
  constexpr int kNumRanks = 8;
  const auto cuda = std::make_shared<test::FakeCuda>(kNumRanks);
  const auto fake = std::make_shared<test::FakeNccl>(cuda);
  fake->set_nodes(kNumRanks / 2, /*network_reduces=*/true);
  const auto body = [](Session& session, Communicator&) {
    const auto nccl = session.make_communicator(BackendChoice::kNccl, {.blocking_wait = true});
    OnGpu on_gpu(*nccl);
    for (const auto stage : {ZeroStage::kOff, ZeroStage::kOptimizer, ZeroStage::kGradients}) {
      train_one_step(on_gpu, {.zero = stage});
    }
    train_one_step(on_gpu, {.comm_hook = make_cast_hook(torch::kHalf)});
    const torch::Tensor values = torch::full({10}, static_cast<float>(session.rank()));
    ModelAverager({{"values", values}}, on_gpu).average();
    expect(values[0].item<float>() == (kNumRanks - 1) / 2.0F, "the mean");
    check_average_gradients(on_gpu);
  };
  run_rank_threads(kNumRanks, body, {.backend = BackendChoice::kHost, .nccl_loader = [&] {
                                       return NcclLibraries{cuda, fake};
                                     }});
  for (const std::string& each : fake->without_nvls()) {
    expect(each.starts_with("broadcast "), "NVLS can do " + each);
  }
  expect(fake->num_violations() == 0, "NCCL's rules are kept");
}

void check_refusals(Communicator& communicator) {
  const torch::Tensor counts = torch::zeros({3}, torch::kLong);
  expect_contains(error_of([&] {
                    ModelAverager({{"counts", counts}}, communicator);
                  }),
                  "counts has");
  ModelAverager nothing({}, communicator);
  nothing.average();
  expect(nothing.sent_bytes() == 0, "of nothing nothing is sent");
}

}  // namespace

int program(int /*argc*/, char** /*argv*/) {
  torch::set_num_threads(1);
  try {
    for (const int num_ranks : {1, 2, 3}) {
      run_rank_threads(
          num_ranks,
          [](Session&, Communicator& communicator) {
            LikeNccl like_nccl(communicator);
            for (Communicator* each : {&communicator, static_cast<Communicator*>(&like_nccl)}) {
              check_equals_averaged_gradients(*each);
              check_means(*each);
              check_delayed(*each);
              check_average_gradients(*each);
              check_sync_batch_norms(*each);
            }
            check_order_of_division(communicator, like_nccl);
            check_refusals(communicator);
          },
          {.backend = BackendChoice::kHost, .communicator = {.timeout = std::chrono::seconds(20)}});
    }
    check_nvls();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "averager_worker: %s\n", error.what());
    return 1;
  }
  return 0;
}

}  // namespace averager_worker
