// SPDX-License-Identifier: Apache-2.0
// One rank of the checks that need a GPU per rank, started by ddprun. They are about PinnedLoader,
// LibTorch's current stream, and DistributedDataParallel over NCCL beside the same training on the
// CPU. Without a GPU it prints SKIPPED and the reason, and exits with 77.
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <string>
#include <vector>

#include "common/text.h"
#include "tests/worker_sdk/torch/twin_optimizers.h"
#include "tests/worker_sdk/torch/worker_program.h"
#include "worker_sdk/ddp/distributed_sampler.h"
#include "worker_sdk/torch/current_stream.h"
#include "worker_sdk/torch/distributed_data_parallel.h"
#include "worker_sdk/torch/flat_optimizer.h"
#include "worker_sdk/torch/grad_scaler.h"
#include "worker_sdk/torch/gradient_clipping.h"
#include "worker_sdk/torch/load_cuda.h"
#include "worker_sdk/torch/pinned_loader.h"
#include "worker_sdk/torch/tensor_exchange.h"

using namespace ddprun;
using namespace ddprun::testing;

namespace {

constexpr std::int64_t kNumSamples = 512, kBatchSize = 16;
constexpr double kTolerance = 1e-9;  // for float64: the effect of another order of summation

// Keeps the current stream of `device` busy for milliseconds. Work that doesn't wait for it comes
// too early.
void occupy_stream(torch::Device device) {
  torch::Tensor busy = torch::ones({2048, 2048}, device);
  for (int i = 0; i < 20; ++i) busy = torch::mm(busy, busy).clamp(0, 1);
}

c10::Stream another_stream(torch::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
}

void check_streams(torch::Device device) {
  expect(current_torch_stream(device.index()) == nullptr, "LibTorch begins on the default stream");
  const c10::StreamGuard guard(another_stream(device));
  expect(current_torch_stream(device.index()) != nullptr, "the guard's stream is the current one");
}

// Batches so large that a copy takes longer than queuing the work after it.
PinnedLoader::Batch load(const std::vector<std::int64_t>& indices) {
  const torch::Tensor numbers = torch::tensor(indices, torch::kLong);
  const torch::Tensor row = torch::arange(100'000, torch::kFloat);
  return {numbers.to(torch::kFloat).unsqueeze(1) + row, numbers};
}

// Uses batches at once, on a stream that is busy and on one that isn't.
void check_loader(torch::Device device, int num_threads) {
  expect(load({1, 2})[0].pin_memory().is_pinned(), "LibTorch pins memory here");
  const DistributedSampler sampler(kNumSamples, 1, 0, {.seed = 3});
  PinnedLoader loader(sampler, {.batch_size = kBatchSize, .num_threads = num_threads}, load,
                      device);
  for (std::uint64_t epoch = 0; epoch < 2; ++epoch) {
    const std::vector<std::int64_t> order = sampler.indices(epoch);
    loader.set_epoch(epoch);
    std::vector<torch::Tensor> doubled;
    for (std::int64_t first = 0; first < kNumSamples; first += kBatchSize) {
      const c10::StreamGuard guard(another_stream(device));
      if (first % (4 * kBatchSize) == 0) occupy_stream(device);
      const auto batch = loader.next();
      expect(batch && batch->size() == 2, "a batch of two tensors");
      expect((*batch)[0].device() == device && (*batch)[1].device() == device, "on the GPU");
      doubled.push_back(((*batch)[0] * 2).cpu());
      const std::vector<std::int64_t> mine(order.begin() + first,
                                           order.begin() + first + kBatchSize);
      expect(torch::equal((*batch)[1].cpu(), torch::tensor(mine)), "the sampler's order");
      expect(torch::equal(doubled.back(), load(mine)[0] * 2), "the batch that was loaded");
    }
    expect(!loader.next(), "the epoch is over");
  }
}

struct NetImpl : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x) {
    x = torch::max_pool2d(torch::relu(conv(x)), 2).flatten(1);
    return torch::log_softmax(fc2(torch::tanh(fc1(x))), 1);
  }
  torch::nn::Conv2d conv = register_module("conv", torch::nn::Conv2d(1, 8, 3));
  torch::nn::Linear fc1 = register_module("fc1", torch::nn::Linear(8 * 49, 64));
  torch::nn::Linear fc2 = register_module("fc2", torch::nn::Linear(64, 10));
};
TORCH_MODULE(Net);

Net make_net(std::uint64_t seed, torch::Device device) {
  torch::manual_seed(seed);
  Net net;
  net->to(device, torch::kDouble);
  return net;
}

void expect_close(const torch::Tensor& mine, const torch::Tensor& wanted, const std::string& what) {
  const torch::Tensor difference = (mine.cpu() - wanted).norm() / wanted.norm();
  const double relative = difference.item<double>();
  expect(relative <= kTolerance, concat(what, " differs from the CPU's by ", relative));
}

// Trains all ranks' batches in one on the CPU, without DDP, and each rank's own on its GPU. The
// ranks' loss is averaged over NCCL as a metric is. Buckets are small, so that there are several.
void check_training(Communicator& communicator, torch::Device device, bool flat) {
  const auto world = static_cast<std::int64_t>(communicator.size());
  Net reference = make_net(1, torch::kCPU);
  // Ranks start from different weights, and then get rank 0's.
  Net net = make_net(1 + static_cast<std::uint64_t>(communicator.rank()), device);
  DistributedDataParallel ddp(*net, communicator,
                              {.buckets = {.first_bytes = 1024, .cap_bytes = 8192}});
  const auto sgd = torch::optim::SGDOptions(0.05).momentum(0.9);
  torch::optim::SGD of_reference(reference->parameters(), sgd), of_net(net->parameters(), sgd);
  std::optional<FlatOptimizer> of_buckets;
  if (flat) {
    of_buckets.emplace(std::vector<ParameterGroup>{{trainable_parameters(*net),
                                                    SgdRule{.lr = 0.05, .momentum = 0.9}}},
                       &ddp);
  }
  torch::manual_seed(7);  // gives every rank the same images
  for (int step = 0; step < 10; ++step) {
    const torch::Tensor images = torch::randn({world * kBatchSize, 1, 16, 16}, torch::kDouble);
    const torch::Tensor labels = torch::randint(10, {world * kBatchSize}, torch::kLong);
    of_reference.zero_grad();
    const torch::Tensor wanted = torch::nll_loss(reference(images), labels);
    wanted.backward();
    of_reference.step();

    const std::int64_t first = communicator.rank() * kBatchSize;
    occupy_stream(device);
    ddp.zero_grad();
    const torch::Tensor loss = torch::nll_loss(ddp(images.narrow(0, first, kBatchSize).to(device)),
                                               labels.narrow(0, first, kBatchSize).to(device));
    loss.backward();
    flat ? of_buckets->step() : static_cast<void>(of_net.step());
    const torch::Tensor shown = loss.detach().clone();
    communicator.all_reduce({.data = shown.mutable_data_ptr(),
                             .count = 1,
                             .dtype = DType::kFloat64,
                             .device = torch_adapter::comm_device_of(shown)},
                            ReduceOp::kAverage);
    expect_close(shown, wanted.detach(), concat("step ", step, ": the loss"));
  }
  expect(ddp.bucket_plan().size() > 1, "there are several buckets");
  const StepStatistics times = ddp.statistics();
  expect(times.num_steps == 9, "each step but the first was timed");
  expect(times.forward.mean > 0 && times.backward.mean > 0 &&
             times.exposed.mean <= times.communication.mean &&
             times.step.mean > times.forward.mean + times.backward.mean,
         concat("times of the device: ", describe(times)));
  const std::vector<torch::Tensor> mine = net->parameters(), wanted = reference->parameters();
  for (std::size_t i = 0; i < mine.size(); ++i) {
    expect_close(mine[i].detach(), wanted[i].detach(), concat("parameter ", i));
  }
}

// Compares unscaled and clipped gradients with the CPU's.
void check_gradients(Communicator& communicator, torch::Device device) {
  GradScaler scaler(device, &communicator);
  std::vector<torch::Tensor> here, there;
  for (const auto dtype : {torch::kDouble, torch::kFloat}) {
    here.push_back(torch::randn({70, 30}, dtype));
    there.push_back((here.back() * scaler.current_scale()).to(device));
  }
  expect(scaler.unscale_async(there).item<float>() == 0, "no overflow");
  const torch::Tensor wanted = clip_gradient_norm(here, {.max_norm = 0.5});
  const torch::Tensor norm = clip_gradient_norm(there, {.max_norm = 0.5});
  expect(torch::allclose(norm.cpu(), wanted, 1e-6), "the norm");
  for (std::size_t i = 0; i < here.size(); ++i) {
    expect(torch::allclose(there[i].cpu(), here[i], 1e-5, 1e-7), "a clipped gradient");
  }
  scaler.update();
  there[1][3][4] = INFINITY;
  expect(scaler.unscale_async(there).item<float>() == 1, "an overflow");
}

void run() {
  const auto session = Session::from_env();
  const torch::Device device(torch::kCUDA, static_cast<c10::DeviceIndex>(session->env().device));
  const c10::DeviceGuard on_device(device);
  // No stream is given, because DistributedDataParallel tells it.
  const auto communicator = session->make_communicator(BackendChoice::kNccl);
  const auto passed = [&](const char* what) {
    if (session->rank() == 0) std::cout << "gpu_worker: passed: " << what << std::endl;
  };
  check_streams(device);
  passed("current_torch_stream");
  for (const int num_threads : {0, 3}) check_loader(device, num_threads);
  passed("PinnedLoader's batches equal those of the CPU");
  check_unread_overflows(device);
  passed("an overflow that nobody reads leaves an update out");
  check_gradients(*communicator, device);
  passed("gradients are unscaled and clipped as on the CPU");
  for (const bool flat : {false, true}) {
    check_training(*communicator, device, flat);
    passed(flat ? "10 steps with FlatOptimizer equal the CPU's" : "10 steps equal the CPU's");
    // NCCL waits only for this stream, and this stream waits for NCCL.
    const auto another = session->make_communicator(BackendChoice::kNccl);
    const c10::StreamGuard guard(another_stream(device));
    check_training(*another, device, flat);
    passed("the same on a stream of one's own");
  }
  communicator->barrier();
}

}  // namespace

int main() {
  torch::set_num_threads(4);
  if (const std::string why = load_cuda(); !why.empty()) {
    std::cout << "SKIPPED: " << why << std::endl;
    return 77;
  }
  try {
    run();
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "gpu_worker: " << error.what() << std::endl;
    return 1;
  }
}
