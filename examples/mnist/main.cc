// SPDX-License-Identifier: Apache-2.0
// A whole training in one file, to copy: data, net, averaging, optimiser, checkpoints, evaluation.
// It also ends in good order when the job is about to lose its node or its time.
//   ddprun --standalone --nproc_per_node=2 mnist data/digits /tmp/run1 [EPOCHS]
// The same command goes on from the last checkpoint. It runs on GPUs if all ranks have one.
#include <torch/torch.h>
#include <zlib.h>

#include <cstdlib>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <ddprun/core/session.h>
#include <ddprun/ddp/distributed_sampler.h>
#include <ddprun/torch/checkpoint.h>
#include <ddprun/torch/distributed_data_parallel.h>
#include <ddprun/torch/flat_optimizer.h>
#include <ddprun/torch/load_cuda.h>
#include <ddprun/torch/pinned_loader.h>
#include <ddprun/torch/tensor_exchange.h>

namespace {

constexpr std::int64_t kBatchSize = 32;      // per rank
constexpr std::uint64_t kStepsPerSave = 20;  // steps between two checkpoints
constexpr int kLeftToGoOn = 75;              // ddprun starts the job again after this exit status
constexpr double kMean = 0.1307, kStd = 0.3081;  // MNIST's

// Returns the bytes of an IDX file, gzipped or plain: type 8, number of sizes, sizes of 4 bytes,
// elements.
torch::Tensor read_idx(const std::string& path) {
  const std::unique_ptr<gzFile_s, int (*)(gzFile)> file(gzopen(path.c_str(), "rb"), gzclose);
  const auto read = [&](void* data, std::int64_t size) {
    if (!file || gzread(file.get(), data, static_cast<unsigned>(size)) != size) {
      throw std::runtime_error(path + ": can't be read, or is no whole IDX file");
    }
  };
  unsigned char head[4], size[4];
  read(head, sizeof head);
  std::vector<std::int64_t> sizes;
  for (int i = 0; i < head[3]; ++i) {
    read(size, sizeof size);
    sizes.push_back(std::int64_t{size[0]} << 24 | size[1] << 16 | size[2] << 8 | size[3]);
  }
  torch::Tensor elements = torch::empty(sizes, torch::kByte);
  read(elements.data_ptr(), elements.numel());
  return elements;
}

struct Digits {
  torch::Tensor images;  // N × 28 × 28 bytes
  torch::Tensor labels;  // N bytes

  Digits(const std::string& directory, const std::string& part)
      : images(read_idx(directory + "/" + part + "-images-idx3-ubyte.gz")),
        labels(read_idx(directory + "/" + part + "-labels-idx1-ubyte.gz")) {}

  // Returns pixels as N × 1 × 28 × 28 floats, labels as int64. Called on the loader's threads.
  std::vector<torch::Tensor> batch(const std::vector<std::int64_t>& indices) const {
    const torch::Tensor chosen = torch::tensor(indices);
    const torch::Tensor pixels = images.index_select(0, chosen).unsqueeze(1).to(torch::kFloat);
    return {(pixels / 255 - kMean) / kStd, labels.index_select(0, chosen).to(torch::kLong)};
  }
};

struct NetImpl : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x) {
    x = torch::max_pool2d(conv1->forward(x).relu_(), 2);
    x = torch::max_pool2d(conv2->forward(x).relu_(), 2);
    return linear->forward(x.flatten(1));
  }

  torch::nn::Conv2d conv1 = register_module("conv1", torch::nn::Conv2d(1, 16, 5));
  torch::nn::Conv2d conv2 = register_module("conv2", torch::nn::Conv2d(16, 32, 5));
  torch::nn::Linear linear = register_module("linear", torch::nn::Linear(32 * 4 * 4, 10));
};
TORCH_MODULE(Net);

// Returns the part of the test images that all ranks together get right; each rank tests its share.
double accuracy(Net& net, const Digits& test, ddprun::Session& session,
                ddprun::Communicator& communicator, torch::Device device) {
  const torch::NoGradGuard no_grad;
  const ddprun::DistributedSampler share(test.labels.size(0), session.world_size(), session.rank(),
                                         {.shuffle = false, .uneven = true});
  const std::vector<torch::Tensor> batch = test.batch(share.indices(0));
  const torch::Tensor guessed = net->forward(batch[0].to(device)).argmax(1);
  const torch::Tensor right = guessed.eq(batch[1].to(device)).sum();
  communicator.all_reduce(ddprun::torch_adapter::view_of(right, "right guesses"),
                          ddprun::ReduceOp::kSum);
  return right.item<double>() / static_cast<double>(test.labels.size(0));
}

int train(const std::string& data, const std::string& directory, std::uint64_t num_epochs) {
  ddprun::load_cuda();  // before anything else of LibTorch; no effect without a GPU
  const auto session = ddprun::Session::from_env({.nccl_loader = ddprun::load_cuda_and_nccl});
  const auto communicator = session->make_communicator();
  const torch::Device device = communicator->backend() == "nccl"
                                   ? torch::Device(torch::kCUDA, session->env().device)
                                   : torch::Device(torch::kCPU);
  const auto say = [&](const std::string& text) {
    if (session->rank() == 0) std::cout << text << std::endl;
  };

  const Digits digits(data, "train"), test(data, "t10k");
  const ddprun::DistributedSampler sampler(digits.labels.size(0), session->world_size(),
                                           session->rank());
  ddprun::PinnedLoader loader(
      sampler, {.batch_size = kBatchSize, .progress = &session->progress()},
      [&](const std::vector<std::int64_t>& indices) { return digits.batch(indices); }, device);

  Net net;
  net->to(device);  // before it is wrapped, which sends rank 0's parameters to all ranks
  ddprun::DistributedDataParallel ddp(*net, *communicator);
  ddprun::FlatOptimizer optimizer(
      {{ddprun::trainable_parameters(*net), ddprun::AdamWRule{.lr = 1e-3}}}, &ddp);

  ddprun::Checkpoint checkpoint({.directory = directory}, *communicator, device);
  const auto tensors = [&] {  // called for each use: the optimiser's state moves in a step
    std::vector<ddprun::NamedTensor> all;
    for (const auto& item : net->named_parameters()) all.push_back({item.key(), item.value()});
    for (const ddprun::NamedState& state : optimizer.state()) {
      all.push_back({"adamw." + state.parameter + "." + std::string(state.name), state.tensor});
    }
    return all;
  };
  std::uint64_t step = 0;  // steps done so far
  if (const auto saved = checkpoint.load(tensors())) {
    step = saved->step;
    say("goes on after step " + std::to_string(step));
  }

  const auto steps_per_epoch =
      static_cast<std::uint64_t>((sampler.size() + kBatchSize - 1) / kBatchSize);
  while (step < num_epochs * steps_per_epoch) {
    const std::uint64_t epoch = step / steps_per_epoch;
    loader.set_epoch(epoch, static_cast<std::int64_t>(step % steps_per_epoch) * kBatchSize);
    torch::Tensor loss;
    while (const auto batch = loader.next()) {
      // It also reports how far this rank is, so that a hang is told from a long step.
      if (session->should_stop(step + 1)) {
        checkpoint.save(step, {}, tensors());
        checkpoint.finish();
        say("left after step " + std::to_string(step));
        return kLeftToGoOn;
      }
      optimizer.zero_grad();
      loss = torch::cross_entropy_loss(ddp((*batch)[0]), (*batch)[1]);
      loss.backward();  // afterwards gradients are averages over all ranks
      optimizer.step();
      ++step;
      if (step % kStepsPerSave == 0) checkpoint.save(step, {}, tensors());
    }
    session->progress().set_phase(ddprun::ProgressPhase::kEvaluate);
    const double part = accuracy(net, test, *session, *communicator, device);
    say("epoch " + std::to_string(epoch + 1) + ": loss " + std::to_string(loss.item<float>()) +
        ", accuracy " + std::to_string(part));
  }
  checkpoint.save(step, {}, tensors());  // no effect if this step is saved already
  checkpoint.finish();
  return EXIT_SUCCESS;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::cerr << "usage: mnist DIGITS CHECKPOINTS [EPOCHS]" << std::endl;
    return 2;
  }
  try {
    return train(argv[1], argv[2], argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 5);
  } catch (const std::exception& error) {
    std::cerr << "mnist: " << error.what() << std::endl;
    return EXIT_FAILURE;
  }
}
