// SPDX-License-Identifier: Apache-2.0
#include "examples/train/trainer.h"

#include <dlfcn.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <thread>
#include <vector>

#include "common/clock.h"
#include "common/env_names.h"
#include "common/log.h"
#include "examples/train/adadelta.h"
#include "worker_sdk/ddp/distributed_sampler.h"
#include "worker_sdk/torch/distributed_data_parallel.h"

namespace ddprun::train {
namespace {

constexpr double kPixelMean = 0.1307, kPixelDeviation = 0.3081;  // MNIST's
constexpr std::int64_t kTestBatch = 256;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// The net of PyTorch's MNIST example: two 3×3 convolutions, 2×2 max-pool, two linear layers.
struct NetImpl : torch::nn::Module {
  // N × 1 × 28 × 28 images → N × 10 log-probabilities.
  torch::Tensor forward(torch::Tensor x) {
    x = conv1(x).relu_();
    // The reference takes relu before the pool; relu is monotonic, so the values are the same, and
    // this way round it has a quarter of the elements.
    x = torch::max_pool2d(conv2(x), 2).relu_();
    x = dropout1(x).flatten(1);
    x = dropout2(fc1(x).relu_());
    return torch::log_softmax(fc2(x), 1);
  }

  torch::nn::Conv2d conv1 = register_module("conv1", torch::nn::Conv2d(1, 32, 3));
  torch::nn::Conv2d conv2 = register_module("conv2", torch::nn::Conv2d(32, 64, 3));
  torch::nn::Dropout dropout1 = register_module("dropout1", torch::nn::Dropout(0.25));
  torch::nn::Dropout dropout2 = register_module("dropout2", torch::nn::Dropout(0.5));
  torch::nn::Linear fc1 = register_module("fc1", torch::nn::Linear(9216, 128));
  torch::nn::Linear fc2 = register_module("fc2", torch::nn::Linear(128, 10));
};
TORCH_MODULE(Net);

// Sums over samples; added up over all ranks before they are reported.
struct Totals {
  torch::Tensor values;  // loss, correct, samples
  explicit Totals(torch::Device device)
      : values(torch::zeros({3}, torch::TensorOptions().dtype(torch::kDouble).device(device))) {}
  double loss() const { return values[0].item<double>() / samples(); }
  double accuracy() const { return values[1].item<double>() / samples(); }
  double samples() const { return values[2].item<double>(); }
};

// One image set on the device, as bytes; batches are made from it.
class Images {
 public:
  Images(const ImageSet& set, torch::Device device) {
    const auto count = static_cast<std::int64_t>(set.count);
    const auto rows = static_cast<std::int64_t>(set.rows);
    const auto columns = static_cast<std::int64_t>(set.columns);
    // from_blob does not own: to() copies to a GPU, and on the CPU `set` outlives this object.
    pixels_ = torch::from_blob(const_cast<std::uint8_t*>(set.pixels.data()),
                               {count, 1, rows, columns}, torch::kByte)
                  .to(device);
    labels_ = torch::from_blob(const_cast<std::uint8_t*>(set.labels.data()), {count}, torch::kByte)
                  .to(torch::TensorOptions().device(device).dtype(torch::kLong));
  }

  std::int64_t count() const { return labels_.size(0); }
  torch::Tensor pixels(const torch::Tensor& indices) const {
    return pixels_.index_select(0, indices)
        .to(torch::kFloat)
        .mul_(1 / (255 * kPixelDeviation))
        .sub_(kPixelMean / kPixelDeviation);
  }
  torch::Tensor labels(const torch::Tensor& indices) const {
    return labels_.index_select(0, indices);
  }

 private:
  torch::Tensor pixels_, labels_;
};

class Trainer {
 public:
  Trainer(const Options& options, const DataSet& data, Communicator& communicator,
          torch::Device device, Progress& progress);
  EpochResult run_epoch(int epoch);
  double median_step_ms();

 private:
  void train(int epoch, Totals& totals);
  void evaluate(Totals& totals);
  void sum_over_ranks(Totals& totals);

  const Options& options_;
  Communicator& communicator_;
  Progress& progress_;
  const std::int64_t batch_size_;  // of this rank
  const torch::Device device_;
  const Images train_images_, test_images_;
  const DistributedSampler sampler_;
  Net net_;
  DistributedDataParallel<NetImpl> ddp_;
  Adadelta optimizer_;
  std::vector<double> step_ms_;
};

Net make_net(std::uint64_t seed, torch::Device device) {
  torch::manual_seed(seed);
  Net net;
  net->to(device);
  return net;
}

Trainer::Trainer(const Options& options, const DataSet& data, Communicator& communicator,
                 torch::Device device, Progress& progress)
    : options_(options),
      communicator_(communicator),
      progress_(progress),
      batch_size_((options.batch_size + communicator.size() - 1) / communicator.size()),
      device_(device),
      train_images_(data.train, device),
      test_images_(data.test, device),
      sampler_(train_images_.count(), communicator.size(), communicator.rank(),
               {.shuffle = true, .seed = options.seed}),
      net_(make_net(options.seed, device)),
      ddp_(*net_, communicator),
      optimizer_(net_->parameters(), {.lr = options.lr}) {
  // Each rank drops out others.
  torch::manual_seed(options.seed + 1 + static_cast<std::uint64_t>(communicator.rank()));
}

void Trainer::train(int epoch, Totals& totals) {
  net_->train();
  optimizer_.set_lr(options_.lr * std::pow(options_.gamma, epoch));
  std::vector<std::int64_t> order = sampler_.indices(static_cast<std::uint64_t>(epoch));
  const torch::Tensor indices =
      torch::from_blob(order.data(), {sampler_.size()}, torch::kLong).to(device_);
  const Clock::time_point start = Clock::now();
  ProgressState state{.epoch = epoch + 1, .num_epochs = options_.num_epochs};
  state.num_steps = static_cast<int>((sampler_.size() + batch_size_ - 1) / batch_size_);
  std::int64_t done = 0;
  for (const torch::Tensor& batch : indices.split(batch_size_)) {
    const Clock::time_point step_start = Clock::now();
    ddp_.zero_grad();
    const torch::Tensor output = ddp_(train_images_.pixels(batch));
    const torch::Tensor loss = torch::nll_loss(output, train_images_.labels(batch));
    loss.backward();
    optimizer_.step();
    totals.values[0] += loss.detach() * batch.size(0);
    step_ms_.push_back(seconds_since(step_start) * 1e3);

    done += batch.size(0);
    ++state.step;
    if (progress_.due(state)) {
      state.loss = loss.item<double>();
      state.samples_per_second =
          static_cast<double>(done) * communicator_.size() / seconds_since(start);
      progress_.update(state);
    }
  }
  totals.values[2] += static_cast<double>(done);
}

void Trainer::evaluate(Totals& totals) {
  net_->eval();
  const torch::NoGradGuard no_grad;
  // Each rank takes every world-th image, with no padding: every image counts once. There may be
  // more ranks than images.
  const std::int64_t count = test_images_.count();
  const std::int64_t first = std::min<std::int64_t>(communicator_.rank(), count);
  const torch::Tensor mine =
      torch::arange(first, count, communicator_.size(), torch::kLong).to(device_);
  for (const torch::Tensor& batch : mine.split(kTestBatch)) {
    if (batch.size(0) == 0) continue;
    const torch::Tensor labels = test_images_.labels(batch);
    const torch::Tensor output = net_->forward(test_images_.pixels(batch));
    totals.values[0] += torch::nll_loss(output, labels) * batch.size(0);
    totals.values[1] += output.argmax(1).eq(labels).sum();
    totals.values[2] += static_cast<double>(batch.size(0));
  }
}

void Trainer::sum_over_ranks(Totals& totals) {
  Device device;
  if (device_.is_cuda()) device = {.kind = Device::Kind::kCuda, .index = device_.index()};
  const TensorView view{.data = totals.values.mutable_data_ptr(),
                        .count = static_cast<std::size_t>(totals.values.numel()),
                        .dtype = DType::kFloat64,
                        .device = device};
  communicator_.all_reduce(view, ReduceOp::kSum);
}

EpochResult Trainer::run_epoch(int epoch) {
  EpochResult result{.epoch = epoch + 1};
  const Clock::time_point start = Clock::now();
  Totals training(device_), testing(device_);
  train(epoch, training);
  sum_over_ranks(training);  // its samples: of all ranks, the sampler's padding included
  result.train_loss = training.loss();
  result.seconds = seconds_since(start);
  result.samples_per_second = training.samples() / result.seconds;
  evaluate(testing);
  sum_over_ranks(testing);
  result.test_loss = testing.loss();
  result.test_accuracy = testing.accuracy();
  return result;
}

double Trainer::median_step_ms() {
  const auto middle = step_ms_.begin() + static_cast<std::ptrdiff_t>(step_ms_.size() / 2);
  std::nth_element(step_ms_.begin(), middle, step_ms_.end());
  return *middle;
}

}  // namespace

std::string why_no_gpu() {
  if (!std::filesystem::exists("/dev/nvidiactl")) return "no NVIDIA driver on this machine";
  // Registers CUDA with the LibTorch that is loaded; stays for the life of the process.
  if (!::dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL)) return ::dlerror();
  return torch::cuda::is_available() ? "" : "LibTorch finds no usable GPU";
}

void set_compute_threads(int num_threads, int local_world_size) {
  if (num_threads == 0) {
    if (std::getenv(env::kOmpNumThreads)) return;  // LibTorch has read it
    const int cores = static_cast<int>(std::thread::hardware_concurrency());
    num_threads = std::max(1, cores / std::max(1, local_world_size));
  }
  torch::set_num_threads(num_threads);
}

Summary run_training(const Options& options, const DataSet& data, Communicator& communicator,
                     int local_rank, Progress& progress) {
  const bool on_gpu = communicator.backend() == "nccl";
  const torch::Device device =
      on_gpu ? torch::Device(torch::kCUDA, static_cast<c10::DeviceIndex>(local_rank))
             : torch::Device(torch::kCPU);
  Trainer trainer(options, data, communicator, device, progress);
  Summary summary;
  summary.world_size = communicator.size();
  summary.backend = communicator.backend();
  summary.device = device.str();
  for (int epoch = 0; epoch < options.num_epochs; ++epoch) {
    const EpochResult result = trainer.run_epoch(epoch);
    summary.epochs.push_back(result);
    char line[160];
    std::snprintf(line, sizeof line,
                  "epoch %d/%d  loss %.4f  test loss %.4f  test accuracy %.4f  %.0f samples/s",
                  result.epoch, options.num_epochs, result.train_loss, result.test_loss,
                  result.test_accuracy, result.samples_per_second);
    progress.line(line);
  }
  summary.median_step_ms = trainer.median_step_ms();
  return summary;
}

}  // namespace ddprun::train
