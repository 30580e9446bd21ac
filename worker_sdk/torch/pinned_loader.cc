// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/torch/pinned_loader.h"

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>

namespace ddprun {

class PinnedLoader::ToDevice {
 public:
  explicit ToDevice(c10::Device device)
      : device_(device),
        streams_(device.type()),
        copies_(streams_.getStreamFromGlobalPool(device)),
        copied_(device.type()) {}

  Batch move(Batch batch) {
    const c10::Stream before = streams_.exchangeStream(copies_);
    try {
      for (at::Tensor& tensor : batch) tensor = tensor.to(device_, /*non_blocking=*/true);
      copied_.record(copies_);
    } catch (...) {
      streams_.exchangeStream(before);
      throw;
    }
    streams_.exchangeStream(before);
    const c10::Stream users = streams_.getStream(device_);
    copied_.block(users);
    // The memory belongs to the copying stream: it is reused only after the user's stream has
    // passed here.
    for (const at::Tensor& tensor : batch) tensor.record_stream(users);
    return batch;
  }

 private:
  const c10::Device device_;
  const c10::impl::VirtualGuardImpl streams_;
  const c10::Stream copies_;
  c10::Event copied_;
};

namespace {

// Runs on a worker's thread: pinning copies, and the training needn't wait for that.
Loader<PinnedLoader::Batch>::Load pinned(Loader<PinnedLoader::Batch>::Load load) {
  return [load = std::move(load)](const std::vector<std::int64_t>& indices) {
    PinnedLoader::Batch batch = load(indices);
    for (at::Tensor& tensor : batch) tensor = tensor.pin_memory();
    return batch;
  };
}

}  // namespace

PinnedLoader::PinnedLoader(const DistributedSampler& sampler, const LoaderOptions& options,
                           Loader<Batch>::Load load, c10::Device device)
    : loader_(sampler, options, device.is_cpu() ? std::move(load) : pinned(std::move(load))),
      to_device_(device.is_cpu() ? nullptr : std::make_unique<ToDevice>(device)) {}

PinnedLoader::~PinnedLoader() = default;

void PinnedLoader::set_epoch(std::uint64_t epoch, std::int64_t first_sample) {
  loader_.set_epoch(epoch, first_sample);
}

std::optional<PinnedLoader::Batch> PinnedLoader::next() {
  std::optional<Batch> batch = loader_.next();
  if (batch && to_device_) *batch = to_device_->move(std::move(*batch));
  return batch;
}

std::chrono::nanoseconds PinnedLoader::waited() const { return loader_.waited(); }

}  // namespace ddprun
