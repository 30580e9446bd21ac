// SPDX-License-Identifier: Apache-2.0
// AdamW's step over 10 M float32 parameters in 200 tensors, one thread: FlatOptimizer over DDP's
// buckets and without DDP, and torch::optim::AdamW, in turn. Prints the medians as one JSON line:
// {"buckets_ms": …, "tensors_ms": …, "torch_ms": …}.
//
//   optimizer_bench [STEPS]   default 30
#include <torch/torch.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "bench/median.h"
#include "common/clock.h"
#include "worker_sdk/core/solo_communicator.h"
#include "worker_sdk/torch/distributed_data_parallel.h"
#include "worker_sdk/torch/flat_optimizer.h"

using namespace ddprun;

namespace {

constexpr int kNumTensors = 200;
constexpr std::int64_t kRows = 250, kColumns = 200;

struct WideImpl : torch::nn::Module {
  WideImpl() {
    for (int i = 0; i < kNumTensors; ++i) {
      const torch::Tensor values = torch::randn({kRows, kColumns});
      register_parameter("w" + std::to_string(i), values);
    }
  }
  torch::Tensor forward(const torch::Tensor& x) {
    torch::Tensor sum = torch::zeros({});
    for (const torch::Tensor& parameter : parameters()) sum = sum + (parameter * x).sum();
    return sum;
  }
};
TORCH_MODULE(Wide);

}  // namespace

int main(int argc, char** argv) {
  const int num_steps = argc > 1 ? std::max(1, std::atoi(argv[1])) : 30;
  torch::set_num_threads(1);
  const torch::Tensor x = torch::randn({kRows, kColumns});

  Wide over_buckets, over_tensors, in_torch;
  const auto communicator = make_solo_communicator();
  DistributedDataParallel ddp(*over_buckets, *communicator);
  FlatOptimizer buckets({{trainable_parameters(*over_buckets), AdamWRule{}}}, &ddp);
  for (int i = 0; i < 2; ++i) {  // the second backward has the final buckets
    ddp.zero_grad();
    ddp(x).backward();
  }
  FlatOptimizer tensors({{trainable_parameters(*over_tensors), AdamWRule{}}});
  over_tensors->forward(x).backward();
  torch::optim::AdamW reference(in_torch->parameters(), torch::optim::AdamWOptions());
  in_torch->forward(x).backward();

  const std::vector<std::function<void()>> sides = {
      [&] { buckets.step(); }, [&] { tensors.step(); }, [&] { reference.step(); }};
  std::vector<std::vector<double>> times_ms(sides.size());
  for (int step = -3; step < num_steps; ++step) {  // three to warm up
    for (std::size_t side = 0; side < sides.size(); ++side) {
      const Clock::time_point start = Clock::now();
      sides[side]();
      const std::chrono::duration<double, std::milli> took = Clock::now() - start;
      if (step >= 0) times_ms[side].push_back(took.count());
    }
  }
  std::printf("{\"buckets_ms\": %.4f, \"tensors_ms\": %.4f, \"torch_ms\": %.4f}\n",
              bench::median(times_ms[0]), bench::median(times_ms[1]), bench::median(times_ms[2]));
}
