// SPDX-License-Identifier: Apache-2.0
// A training step of an MLP in a pipeline (1F1B) on the host communicator, a stage on each rank,
// one compute thread per rank. Started by ddprun; rank 0 prints the medians as one JSON line:
// {"step_ms": …, "compute_ms": …, "ideal_ms": …, "ranks": …}. `compute`: the same micro-batches
// through the whole net on one rank, without a pipeline. All ranks do that at once, so that caches
// and memory are as busy. Steps of both kinds are taken in turn. `ideal`: that, shared by the
// stages, with the bubble of the schedule. pipeline_peer.py is the same in Python.
//
//   pipeline_bench STEPS [MICRO_BATCHES]   default 8
#include <malloc.h>
#include <torch/torch.h>

#include <algorithm>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "bench/median.h"
#include "common/clock.h"
#include "worker_sdk/core/session.h"
#include "worker_sdk/torch/parallel/pipeline.h"

using namespace ddprun;

namespace {

constexpr int kWarmUpSteps = 3, kLayersPerStage = 6;
constexpr std::int64_t kWidth = 768, kRows = 512;

torch::nn::Sequential stage_of_mlp() {
  torch::nn::Sequential layers;
  for (int i = 0; i < kLayersPerStage; ++i) {
    layers->push_back(torch::nn::Linear(kWidth, kWidth));
    layers->push_back(torch::nn::ReLU());
  }
  return layers;
}

void zero_gradients(const torch::nn::Sequential& layers) {
  for (auto& each : layers->parameters()) {
    if (each.grad().defined()) each.mutable_grad().zero_();
  }
}

void run(int num_steps, int num_micro_batches) {
  const auto session = Session::from_env();
  const auto communicator = session->make_communicator(BackendChoice::kHost);
  const int num_stages = communicator->size();
  torch::manual_seed(1);
  std::vector<torch::nn::Sequential> net;  // all of it; a stage of the pipeline is one of them
  for (int i = 0; i < num_stages; ++i) net.push_back(stage_of_mlp());
  const torch::Tensor x = torch::randn({kRows, kWidth}), y = torch::randn({kRows, kWidth});

  torch::nn::Sequential& own = net[static_cast<std::size_t>(communicator->rank())];
  Pipeline pipeline([&](const torch::Tensor& input) { return own->forward(input); }, *communicator,
                    {.num_micro_batches = num_micro_batches});
  const auto loss_of = [&](const torch::Tensor& output, const MicroBatch& part) {
    return torch::mse_loss(output, y.narrow(0, part.first, part.count));
  };
  const auto alone = [&] {
    for (const MicroBatch& part : split_batch(kRows, num_micro_batches)) {
      torch::Tensor value = x.narrow(0, part.first, part.count);
      for (auto& stage : net) value = stage->forward(value);
      (loss_of(value, part) * part.weight).backward();
    }
  };
  const auto time_of = [&](const auto& step) {
    for (const auto& stage : net) zero_gradients(stage);
    communicator->barrier();
    const Clock::time_point start = Clock::now();
    step();
    communicator->barrier();
    return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
  };
  std::vector<double> step_ms, compute_ms;
  for (int step = -kWarmUpSteps; step < num_steps; ++step) {
    const double with = time_of([&] { pipeline.train_step(x, loss_of); });
    const double without = time_of(alone);
    if (step < 0) continue;
    step_ms.push_back(with);
    compute_ms.push_back(without);
  }
  if (session->rank() != 0) return;
  const double compute = bench::median(compute_ms);
  const double bubble = static_cast<double>(num_stages - 1) / num_micro_batches;
  std::printf("{\"step_ms\": %.4f, \"compute_ms\": %.4f, \"ideal_ms\": %.4f, \"ranks\": %d}\n",
              bench::median(step_ms), compute, (1 + bubble) * compute / num_stages, num_stages);
}

}  // namespace

int main(int argc, char** argv) {
  const int num_steps = argc > 1 ? std::atoi(argv[1]) : 0;
  const int num_micro_batches = argc > 2 ? std::atoi(argv[2]) : 8;
  if (num_steps < 1 || num_micro_batches < 1) {
    std::fprintf(stderr, "usage: pipeline_bench STEPS [MICRO_BATCHES]\n");
    return 2;
  }
  ::mallopt(M_MMAP_THRESHOLD, 1 << 30);  // as train: activations come and go in each step
  ::mallopt(M_TRIM_THRESHOLD, INT_MAX);
  torch::set_num_threads(1);
  try {
    run(num_steps, num_micro_batches);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "pipeline_bench: %s\n", error.what());
    return 1;
  }
}
