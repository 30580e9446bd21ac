// SPDX-License-Identifier: Apache-2.0
// A step (forward, backward, SGD) of two linear layers that the ranks share, on the host
// communicator, one compute thread per rank. Started by ddprun; rank 0 prints the median as one
// JSON line: {"step_ms": …, "loss": …, "ranks": …}. tensor_parallel.py is the same in Python.
//
//   tensor_parallel_bench STEPS [layers|functions]
//
// `functions`: the layers put together from copy_to_region and reduce_from_region, whose sums
// overlap with nothing.
#include <malloc.h>
#include <torch/torch.h>

#include <climits>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "bench/median.h"
#include "common/clock.h"
#include "worker_sdk/core/session.h"
#include "worker_sdk/torch/flat_optimizer.h"
#include "worker_sdk/torch/parallel/parallel_linear.h"
#include "worker_sdk/torch/parallel/tensor_parallel.h"

using namespace ddprun;

namespace {

constexpr int kWarmUpSteps = 5;
constexpr std::int64_t kBatch = 64, kWidth = 1024, kHidden = 4096;

struct PairImpl : torch::nn::Module {
  explicit PairImpl(Communicator& group) {
    column = register_module(
        "column",
        ColumnParallelLinear(ColumnParallelOptions{.in_features = kWidth, .out_features = kHidden},
                             group));
    row = register_module(
        "row", RowParallelLinear(RowParallelOptions{.in_features = kHidden, .out_features = kWidth},
                                 group));
  }
  ColumnParallelLinear column = nullptr;
  RowParallelLinear row = nullptr;
};
TORCH_MODULE(Pair);

void run(int num_steps, bool by_functions) {
  const auto session = Session::from_env();
  const auto group = session->make_communicator(BackendChoice::kHost);
  torch::manual_seed(1);
  Pair net(*group);
  // As between other layers: the gradient of the input is wanted.
  const torch::Tensor x = torch::randn({kBatch, kWidth}).requires_grad_();
  const torch::Tensor target = torch::randn({kBatch, kWidth});
  FlatOptimizer optimizer({{trainable_parameters(*net), SgdRule{.lr = 0.05}}});
  const auto forward = [&] {
    if (!by_functions) return net->row(net->column(x).relu());
    const torch::Tensor hidden =
        torch::linear(copy_to_region(x, *group), net->column->weight, net->column->bias).relu();
    return reduce_from_region(torch::linear(hidden, net->row->weight), *group) + net->row->bias;
  };
  std::vector<double> step_ms;
  double loss_value = 0;
  for (int step = -kWarmUpSteps; step < num_steps; ++step) {
    const Clock::time_point start = Clock::now();
    const torch::Tensor loss = torch::mse_loss(forward(), target);
    optimizer.zero_grad();
    x.mutable_grad() = torch::Tensor();
    loss.backward();
    optimizer.step();
    if (step < 0) continue;
    step_ms.push_back(std::chrono::duration<double, std::milli>(Clock::now() - start).count());
    loss_value = loss.item<double>();
  }
  group->barrier();
  if (session->rank() != 0) return;
  std::printf("{\"step_ms\": %.4f, \"loss\": %.6f, \"ranks\": %d}\n", bench::median(step_ms),
              loss_value, group->size());
}

}  // namespace

int main(int argc, char** argv) {
  const int num_steps = argc > 1 ? std::atoi(argv[1]) : 0;
  const std::string how = argc > 2 ? argv[2] : "layers";
  if (num_steps < 1 || (how != "layers" && how != "functions")) {
    std::fprintf(stderr, "usage: tensor_parallel_bench STEPS [layers|functions]\n");
    return 2;
  }
  ::mallopt(M_MMAP_THRESHOLD, 1 << 30);  // as train: activations come and go in each step
  ::mallopt(M_TRIM_THRESHOLD, INT_MAX);
  torch::set_num_threads(1);
  try {
    run(num_steps, how == "functions");
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "tensor_parallel_bench: %s\n", error.what());
    return 1;
  }
}
