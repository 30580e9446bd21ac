// SPDX-License-Identifier: Apache-2.0
#include "apps/train/training_data.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <thread>

#include "common/error.h"
#include "common/text.h"

namespace ddprun::train {
namespace {

constexpr double kPixelMean = 0.1307, kPixelDeviation = 0.3081;  // MNIST's

// Returns the device on which batches are made: the CPU for threads of the loader, else the
// training's.
c10::Device image_device(const Options& options, c10::Device device) {
  return options.loader_threads > 0 ? c10::Device(c10::kCPU) : device;
}

SamplerOptions sampler_options(const Options& options) {
  return {.shuffle = true,
          .seed = options.seed,
          .drop_last = options.uneven_inputs == UnevenInputs::kDrop,
          .uneven = options.uneven_inputs == UnevenInputs::kJoin};
}

}  // namespace

Images::Images(const ImageSet& set, c10::Device device) {
  const auto count = static_cast<std::int64_t>(set.count);
  const auto rows = static_cast<std::int64_t>(set.rows);
  const auto columns = static_cast<std::int64_t>(set.columns);
  // from_blob doesn't own the memory: to() copies it to a GPU, and on the CPU `set` outlives this
  // object.
  pixels_ = at::from_blob(const_cast<std::uint8_t*>(set.pixels.data()), {count, 1, rows, columns},
                          at::kByte)
                .to(device);
  labels_ = at::from_blob(const_cast<std::uint8_t*>(set.labels.data()), {count}, at::kByte)
                .to(at::TensorOptions().device(device).dtype(at::kLong));
}

at::Tensor Images::pixels(const at::Tensor& indices) const {
  return pixels_.index_select(0, indices)
      .to(at::kFloat)
      .mul_(1 / (255 * kPixelDeviation))
      .sub_(kPixelMean / kPixelDeviation);
}

at::Tensor Images::labels(const at::Tensor& indices) const {
  return labels_.index_select(0, indices);
}

std::vector<at::Tensor> Images::batch(const std::vector<std::int64_t>& indices) const {
  const c10::NoGradGuard no_grad;
  at::Tensor chosen = at::tensor(indices, at::kLong);
  // A copy from pinned memory doesn't wait for the step before, which may still run on the GPU.
  if (device().is_cuda()) chosen = chosen.pin_memory();
  chosen = chosen.to(device(), /*non_blocking=*/true);
  return {pixels(chosen), labels(chosen)};
}

TrainingData::TrainingData(const Options& options, const DataSet& data, const Place& place,
                           c10::Device device)
    : num_ranks_(place.data_ranks().size()),
      sampling_(sampler_options(options)),
      batch_size_((options.batch_size + num_ranks_ - 1) / num_ranks_),
      train_images_(data.train, image_device(options, device)),
      test_images_(data.test, device),
      sampler_(train_images_.count(), num_ranks_, place.data_ranks().rank(), sampling_),
      common_samples_(sampling_.uneven ? train_images_.count() / num_ranks_ : sampler_.size()),
      loader_(make_loader(options, place, device)) {
  if (common_samples_ > 0) return;
  throw Error(
      ErrorCode::kInvalidArgument,
      concat("--uneven-inputs ", to_string(options.uneven_inputs), ": ", train_images_.count(),
             " images are too few for ", num_ranks_, " ranks: use fewer, or --uneven-inputs pad"));
}

PinnedLoader TrainingData::make_loader(const Options& options, const Place& place,
                                       c10::Device device) const {
  LoaderOptions loading{.batch_size = batch_size_, .num_threads = options.loader_threads};
  if (place.session) loading.progress = &place.session->progress();
  const auto load = [this, delay = options.loader_delay](const std::vector<std::int64_t>& indices) {
    if (delay.count() > 0) std::this_thread::sleep_for(delay);
    return train_images_.batch(indices);
  };
  return {sampler_, loading, load,
          train_images_.device().is_cpu() ? device : c10::Device(c10::kCPU)};
}

std::int64_t TrainingData::num_batches(std::int64_t num_samples) const {
  return (num_samples + batch_size_ - 1) / batch_size_;
}

std::uint64_t TrainingData::steps_per_epoch() const {
  const DistributedSampler of_rank_zero(train_images_.count(), num_ranks_, 0, sampling_);
  return static_cast<std::uint64_t>(num_batches(of_rank_zero.size()));
}

}  // namespace ddprun::train
