// SPDX-License-Identifier: Apache-2.0
// A training step by the SDK: DistributedDataParallel, on the host communicator or, with "cuda", on
// a GPU per rank and NCCL. It takes SGD with momentum over the buckets, and one compute thread per
// rank. Started by ddprun; rank 0 prints the median as one JSON line: {"step_ms": …, "exposed_ms":
// …, "gradient_mib": …, "ranks": …}. step_ddp.py is the same in Python.
//
//   step_bench resnet18|mlp|gpt2 STEPS [COMPRESSION [cpu|cuda]]
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <malloc.h>
#include <torch/torch.h>

#include <algorithm>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "bench/median.h"
#include "common/clock.h"
#include "common/error.h"
#include "worker_sdk/core/session.h"
#include "worker_sdk/torch/autocast.h"
#include "worker_sdk/torch/cast_hook.h"
#include "worker_sdk/torch/distributed_data_parallel.h"
#include "worker_sdk/torch/flat_optimizer.h"
#include "worker_sdk/torch/load_cuda.h"

using namespace ddprun;

namespace {

constexpr int kWarmUpSteps = 5;
constexpr std::int64_t kImagesPerRank = 16, kRowsPerRank = 64;
constexpr std::int64_t kTextsPerRank = 8, kTokens = 512, kVocabulary = 50'257, kWidth = 768;

torch::nn::Conv2d conv(std::int64_t in, std::int64_t out, std::int64_t kernel,
                       std::int64_t stride) {
  return torch::nn::Conv2d(
      torch::nn::Conv2dOptions(in, out, kernel).stride(stride).padding(kernel / 2).bias(false));
}

// Two 3×3 convolutions beside a way past them.
struct BlockImpl : torch::nn::Module {
  BlockImpl(std::int64_t in, std::int64_t out, std::int64_t stride) {
    conv1 = register_module("conv1", conv(in, out, 3, stride));
    norm1 = register_module("norm1", torch::nn::BatchNorm2d(out));
    conv2 = register_module("conv2", conv(out, out, 3, 1));
    norm2 = register_module("norm2", torch::nn::BatchNorm2d(out));
    if (stride == 1 && in == out) return;
    past->push_back(conv(in, out, 1, stride));
    past->push_back(torch::nn::BatchNorm2d(out));
    register_module("past", past);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor y = norm2(conv2(norm1(conv1(x)).relu_()));
    return (y + (past->is_empty() ? x : past->forward(x))).relu_();
  }
  torch::nn::Conv2d conv1 = nullptr, conv2 = nullptr;
  torch::nn::BatchNorm2d norm1 = nullptr, norm2 = nullptr;
  torch::nn::Sequential past;
};
TORCH_MODULE(Block);

// He et al., "Deep Residual Learning", 2016: ResNet-18, its stem for 32 × 32 images.
torch::nn::Sequential resnet18() {
  torch::nn::Sequential net(conv(3, 64, 3, 1), torch::nn::BatchNorm2d(64), torch::nn::ReLU());
  std::int64_t channels = 64;
  for (const std::int64_t width : {64, 128, 256, 512}) {
    net->push_back(Block(channels, width, width == channels ? 1 : 2));
    net->push_back(Block(width, width, 1));
    channels = width;
  }
  net->push_back(torch::nn::AdaptiveAvgPool2d(1));
  net->push_back(torch::nn::Flatten());
  net->push_back(torch::nn::Linear(512, 10));
  return net;
}

// 25 MiB of gradients: 6,550,878 parameters.
torch::nn::Sequential mlp() {
  return torch::nn::Sequential(torch::nn::Linear(1024, 2048), torch::nn::ReLU(),
                               torch::nn::Linear(2048, 2048), torch::nn::ReLU(),
                               torch::nn::Linear(2048, 124), torch::nn::ReLU(),
                               torch::nn::Linear(124, 10));
}

// A layer of Radford et al., "Language Models are Unsupervised Multitask Learners", 2019.
struct LayerImpl : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x) {
    constexpr std::int64_t kHeads = 12;
    const std::int64_t texts = x.size(0), tokens = x.size(1);
    const auto parts = attention(norm1(x))
                           .view({texts, tokens, 3, kHeads, kWidth / kHeads})
                           .permute({2, 0, 3, 1, 4})
                           .unbind();
    const torch::Tensor seen =
        at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0, true);
    x = x + projection(seen.transpose(1, 2).reshape({texts, tokens, kWidth}));
    return x + down(at::gelu(up(norm2(x)), "tanh"));
  }
  torch::nn::LayerNorm norm1 = register_module("norm1", norm()),
                       norm2 = register_module("norm2", norm());
  torch::nn::Linear attention = register_module("attention", torch::nn::Linear(kWidth, 3 * kWidth));
  torch::nn::Linear projection = register_module("projection", torch::nn::Linear(kWidth, kWidth));
  torch::nn::Linear up = register_module("up", torch::nn::Linear(kWidth, 4 * kWidth));
  torch::nn::Linear down = register_module("down", torch::nn::Linear(4 * kWidth, kWidth));

  static torch::nn::LayerNorm norm() {
    return torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth}));
  }
};
TORCH_MODULE(Layer);

// GPT-2 small: 124 M parameters; what a token is and what comes next have the same weights.
struct Gpt2Impl : torch::nn::Module {
  Gpt2Impl() {
    torch::nn::init::normal_(words->weight, 0, 0.02);
    for (int i = 0; i < 12; ++i) layers->push_back(Layer());
    register_module("layers", layers);
    register_module("norm", norm);
  }
  torch::Tensor forward(const torch::Tensor& ids) {
    const torch::Tensor places = torch::arange(ids.size(1), ids.options());
    const torch::Tensor x = norm(layers->forward(words(ids) + positions(places)));
    return torch::linear(x, words->weight).flatten(0, 1);
  }
  torch::nn::Embedding words = register_module("words", torch::nn::Embedding(kVocabulary, kWidth));
  torch::nn::Embedding positions = register_module("positions", torch::nn::Embedding(1024, kWidth));
  torch::nn::Sequential layers;
  torch::nn::LayerNorm norm = LayerImpl::norm();
};
TORCH_MODULE(Gpt2);

struct Task {
  torch::nn::Sequential net = nullptr;
  torch::Tensor x, labels;
  bool autocast = false;  // to bfloat16
};

Task make_task(const std::string& model) {
  if (model == "resnet18") {
    return {resnet18(), torch::randn({kImagesPerRank, 3, 32, 32}),
            torch::randint(10, {kImagesPerRank}, torch::kLong)};
  }
  if (model == "mlp") {
    return {mlp(), torch::randn({kRowsPerRank, 1024}),
            torch::randint(10, {kRowsPerRank}, torch::kLong)};
  }
  return {torch::nn::Sequential(Gpt2()),
          torch::randint(kVocabulary, {kTextsPerRank, kTokens}, torch::kLong),
          torch::randint(kVocabulary, {kTextsPerRank * kTokens}, torch::kLong), true};
}

double milliseconds(Clock::duration time) {
  return std::chrono::duration<double, std::milli>(time).count();
}

// LibTorch's CUDA part, on this rank's GPU.
torch::Device gpu_of(const Session& session) {
  if (const std::string why = load_cuda(); !why.empty()) {
    throw Error(ErrorCode::kUnsupported, "no CUDA here: " + why);
  }
  return {torch::kCUDA, static_cast<c10::DeviceIndex>(session.env().device)};
}

// Work queued for the GPU is part of the step.
void finish_step(torch::Device device) {
  if (device.is_cuda())
    c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
}

void run(const std::string& model, int num_steps, const std::string& compression, bool on_gpu) {
  const auto session = Session::from_env();
  const torch::Device device = on_gpu ? gpu_of(*session) : torch::Device(torch::kCPU);
  const c10::DeviceGuard on_device(device);
  const auto communicator =
      session->make_communicator(on_gpu ? BackendChoice::kNccl : BackendChoice::kHost);
  torch::manual_seed(1);
  const Task task = make_task(model);
  torch::nn::Sequential net = task.net;
  net->to(device);
  const torch::Tensor x = task.x.to(device), labels = task.labels.to(device);
  DdpOptions options;
  options.comm_hook = make_comm_hook(parse_compression(compression), device);
  DistributedDataParallel ddp(*net, *communicator, options);
  FlatOptimizer optimizer({{trainable_parameters(*net), SgdRule{.lr = 1e-3, .momentum = 0.9}}},
                          &ddp);
  std::vector<double> step_ms, exposed_ms;
  for (int step = -kWarmUpSteps; step < num_steps; ++step) {
    const Clock::time_point start = Clock::now();
    ddp.before_forward();
    torch::Tensor loss;
    {
      const Autocast mixed(device.type(), torch::kBFloat16, task.autocast);
      loss = torch::cross_entropy_loss(net->forward(x), labels);
    }
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    finish_step(device);
    if (step < 0) continue;
    step_ms.push_back(milliseconds(Clock::now() - start));
    exposed_ms.push_back(milliseconds(ddp.trace().exposed()));
  }
  communicator->barrier();
  if (session->rank() != 0) return;
  double num_parameters = 0;
  for (const auto& each : net->parameters()) num_parameters += static_cast<double>(each.numel());
  std::printf("{\"step_ms\": %.4f, \"exposed_ms\": %.4f, \"gradient_mib\": %.3f, \"ranks\": %d}\n",
              bench::median(step_ms), bench::median(exposed_ms),
              num_parameters * sizeof(float) / (1 << 20), session->world_size());
}

}  // namespace

int main(int argc, char** argv) {
  const std::string model = argc > 1 ? argv[1] : "";
  const int num_steps = argc > 2 ? std::atoi(argv[2]) : 0;
  if ((model != "resnet18" && model != "mlp" && model != "gpt2") || num_steps < 1) {
    std::fprintf(stderr, "usage: step_bench resnet18|mlp|gpt2 STEPS [COMPRESSION [cpu|cuda]]\n");
    return 2;
  }
  ::mallopt(M_MMAP_THRESHOLD, 1 << 30);  // as train: activations come and go in each step
  ::mallopt(M_TRIM_THRESHOLD, INT_MAX);
  torch::set_num_threads(1);
  try {
    run(model, num_steps, argc > 3 ? argv[3] : "none", argc > 4 && argv[4] == std::string("cuda"));
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "step_bench: %s\n", error.what());
    return 1;
  }
}
