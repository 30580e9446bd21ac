// SPDX-License-Identifier: Apache-2.0
// AdamW over 10.5 M float32 parameters by DistributedDataParallel with or without ZeRO, one compute
// thread per rank, on the host communicator. Started by ddprun; rank 0 prints one JSON line:
// {"state_mb": …, "added_mb": …, "gradient_mb": …, "step_ms": …}. The values are its optimiser's
// state by the sizes of the tensors, and the growth of its private memory. All memory for gradients
// and the median step follow. Memory grows from before the optimiser was made until after the first
// steps.
//
//   zero_bench 0|1|2 STEPS
#include <malloc.h>
#include <torch/torch.h>

#include <climits>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "bench/median.h"
#include "common/clock.h"
#include "common/error.h"
#include "worker_sdk/core/session.h"
#include "worker_sdk/torch/distributed_data_parallel.h"
#include "worker_sdk/torch/flat_optimizer.h"
#include "worker_sdk/torch/sharded_optimizer.h"

using namespace ddprun;

namespace {

constexpr int kWarmUpSteps = 3, kNumLayers = 10;
constexpr std::int64_t kWidth = 1024, kRowsPerRank = 16;

// Private memory of this process that is in RAM; the communicator's, which is shared, isn't.
double private_mb() {
  ::malloc_trim(0);
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    double kilobytes = 0;
    if (word == "RssAnon:" && status >> kilobytes) return kilobytes / 1e3;
  }
  throw Error(ErrorCode::kSystem, "/proc/self/status has no RssAnon");
}

void run(ZeroStage stage, int num_steps) {
  const auto session = Session::from_env();
  const auto communicator = session->make_communicator(BackendChoice::kHost);
  torch::manual_seed(1);
  torch::nn::Sequential net;
  for (int i = 0; i < kNumLayers; ++i) {
    net->push_back(torch::nn::Linear(kWidth, kWidth));
    net->push_back(torch::nn::Tanh());
  }
  const torch::Tensor x = torch::randn({kRowsPerRank, kWidth});
  DistributedDataParallel ddp(*net, *communicator, {.zero = stage});
  {  // Memory that LibTorch keeps after its first forward is not the optimiser's.
    const torch::NoGradGuard no_grad;
    net->forward(x);
  }
  const double before_mb = private_mb();
  std::vector<ParameterGroup> groups = {{trainable_parameters(*net), AdamWRule{}}};
  std::optional<FlatOptimizer> flat;
  std::optional<ShardedOptimizer> sharded;
  stage == ZeroStage::kOff ? (void)flat.emplace(groups, &ddp) : (void)sharded.emplace(groups, ddp);
  double added_mb = 0;
  std::vector<double> step_ms;
  for (int step = -kWarmUpSteps; step < num_steps; ++step) {
    const Clock::time_point start = Clock::now();
    ddp.before_forward();
    net->forward(x).square().mean().backward();
    flat ? flat->step() : sharded->step();
    ddp.zero_grad();
    const std::chrono::duration<double, std::milli> took = Clock::now() - start;
    if (step >= 0) step_ms.push_back(took.count());
    if (step == -1) added_mb = private_mb() - before_mb;
  }
  double state_bytes = 0;
  if (flat) {
    for (const NamedState& each : flat->state()) state_bytes += double(each.tensor.nbytes());
  } else {
    state_bytes = static_cast<double>(sharded->state_bytes());
  }
  communicator->barrier();
  if (session->rank() != 0) return;
  std::printf(
      "{\"state_mb\": %.3f, \"added_mb\": %.3f, \"gradient_mb\": %.3f, \"step_ms\": %.3f}\n",
      state_bytes / 1e6, added_mb, static_cast<double>(ddp.gradient_bytes()) / 1e6,
      bench::median(step_ms));
}

}  // namespace

int main(int argc, char** argv) {
  const int stage = argc > 1 ? std::atoi(argv[1]) : -1,
            num_steps = argc > 2 ? std::atoi(argv[2]) : 0;
  if (stage < 0 || stage > 2 || num_steps < 1) {
    std::fprintf(stderr, "usage: zero_bench 0|1|2 STEPS\n");
    return 2;
  }
  ::mallopt(M_MMAP_THRESHOLD, 1 << 30);  // as train: activations come and go in each step
  ::mallopt(M_TRIM_THRESHOLD, INT_MAX);
  torch::set_num_threads(1);
  try {
    run(static_cast<ZeroStage>(stage), num_steps);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "zero_bench: %s\n", error.what());
    return 1;
  }
}
