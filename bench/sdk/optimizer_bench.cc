// SPDX-License-Identifier: Apache-2.0
// AdamW's step over 10 M float32 parameters in 200 tensors, one thread. FlatOptimizer over DDP's
// buckets, FlatOptimizer without DDP and torch::optim::AdamW run in turn; then the same of
// clipping, also of gradients as ResNet-18 has them. Prints the medians as one JSON line:
// {"buckets_ms": …, "tensors_ms": …, "torch_ms": …, …}. optimizer_torch.py has PyTorch's fused one.
//
//   optimizer_bench [STEPS [cpu|cuda]]   default 30, cpu; cuda: one rank under ddprun
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bench/median.h"
#include "common/clock.h"
#include "common/error.h"
#include "common/text.h"
#include "worker_sdk/core/session.h"
#include "worker_sdk/core/solo_communicator.h"
#include "worker_sdk/torch/distributed_data_parallel.h"
#include "worker_sdk/torch/flat_optimizer.h"
#include "worker_sdk/torch/gradient_clipping.h"
#include "worker_sdk/torch/load_cuda.h"

using namespace ddprun;

namespace {

constexpr int kNumTensors = 200;
constexpr std::int64_t kRows = 250, kColumns = 200;

struct WideImpl : torch::nn::Module {
  WideImpl() {
    for (int i = 0; i < kNumTensors; ++i) {
      const torch::Tensor values = torch::randn({kRows, kColumns});
      register_parameter(concat("w", i), values);
    }
  }
  torch::Tensor forward(const torch::Tensor& x) {
    torch::Tensor sum = torch::zeros({}, x.options());
    for (const torch::Tensor& parameter : parameters()) sum = sum + (parameter * x).sum();
    return sum;
  }
};
TORCH_MODULE(Wide);

// Returns parameters with gradients, in the sizes of step_bench's ResNet-18.
std::vector<torch::Tensor> resnet18_parameters(torch::Device device) {
  std::vector<torch::Tensor> all;
  const auto add = [&](at::IntArrayRef sizes) {
    all.push_back(torch::zeros(sizes, torch::TensorOptions(device).requires_grad(true)));
    all.back().mutable_grad() = torch::randn(sizes, device);
  };
  const auto add_layer = [&](std::int64_t in, std::int64_t out, std::int64_t kernel) {
    add({out, in, kernel, kernel});
    for (int i = 0; i < 2; ++i) add({out});  // its batch normalisation
  };
  std::int64_t channels = 64;
  add_layer(3, channels, 3);
  for (const std::int64_t width : {64, 128, 256, 512}) {
    add_layer(channels, width, 3);
    if (channels != width) add_layer(channels, width, 1);
    for (int i = 0; i < 3; ++i) add_layer(width, width, 3);
    channels = width;
  }
  add({10, channels});
  add({10});
  return all;
}

void run(int num_steps, bool on_gpu) {
  std::unique_ptr<Session> session;
  torch::Device device(torch::kCPU);
  if (on_gpu) {
    session = Session::from_env();
    const std::string why = load_cuda();
    if (!why.empty()) throw Error(ErrorCode::kUnsupported, "no CUDA here: " + why);
    device = {torch::kCUDA, static_cast<c10::DeviceIndex>(session->env().device)};
  }
  const c10::DeviceGuard on_device(device);
  const auto communicator =
      on_gpu ? session->make_communicator(BackendChoice::kNccl) : make_solo_communicator();
  const torch::Tensor x = torch::randn({kRows, kColumns}).to(device);

  Wide over_buckets, over_tensors, in_torch;
  for (Wide each : {over_buckets, over_tensors, in_torch}) each->to(device);
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

  struct Side {
    const char* name;
    std::function<void()> run;
    std::vector<double> times_ms{};
  };
  constexpr double kMaxNorm = 1e9;
  const std::vector<torch::Tensor> resnet18 = resnet18_parameters(device);
  std::vector<torch::Tensor> resnet18_gradients;
  for (const torch::Tensor& each : resnet18) resnet18_gradients.push_back(each.grad());
  Side sides[] = {
      {"buckets", [&] { buckets.step(); }},
      {"tensors", [&] { tensors.step(); }},
      {"torch", [&] { reference.step(); }},
      {"clip", [&] { clip_gradient_norm(tensors.gradients(), {.max_norm = kMaxNorm}); }},
      {"torch_clip", [&] { torch::nn::utils::clip_grad_norm_(in_torch->parameters(), kMaxNorm); }},
      {"resnet18_clip", [&] { clip_gradient_norm(resnet18_gradients, {.max_norm = kMaxNorm}); }},
      {"torch_resnet18_clip", [&] { torch::nn::utils::clip_grad_norm_(resnet18, kMaxNorm); }}};
  const auto finish = [&] {
    if (on_gpu) c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
  };
  for (int step = -3; step < num_steps; ++step) {  // three to warm up
    for (Side& side : sides) {
      finish();
      const Clock::time_point start = Clock::now();
      side.run();
      finish();
      const std::chrono::duration<double, std::milli> took = Clock::now() - start;
      if (step >= 0) side.times_ms.push_back(took.count());
    }
  }
  const char* separator = "{";
  for (const Side& side : sides) {
    std::printf("%s\"%s_ms\": %.4f", separator, side.name, bench::median(side.times_ms));
    separator = ", ";
  }
  std::printf("}\n");
}

}  // namespace

int main(int argc, char** argv) {
  torch::set_num_threads(1);
  try {
    run(argc > 1 ? std::max(1, std::atoi(argv[1])) : 30,
        argc > 2 && argv[2] == std::string("cuda"));
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "optimizer_bench: %s\n", error.what());
    return 1;
  }
}
