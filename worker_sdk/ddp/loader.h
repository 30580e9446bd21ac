// SPDX-License-Identifier: Apache-2.0
// Loads a rank's batches on worker threads, ahead of the training. docs/loader.md.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/error.h"
#include "worker_sdk/core/worker_progress.h"
#include "worker_sdk/ddp/distributed_sampler.h"
#include "worker_sdk/ddp/prefetcher.h"

namespace ddprun {

struct LoaderOptions {
  std::int64_t batch_size = 1;  // samples of this rank; the last batch of an epoch may be smaller
  bool drop_last = false;       // true: a smaller last batch is left out
  int num_threads = 2;          // 0: next() loads on the caller's thread
  std::size_t prefetch = 4;     // batches that are loaded, or being loaded, ahead of use; ≥ 1
  WorkerProgress* progress = nullptr;  // counts the waiting, too; outlives the loader
};

// One thread calls set_epoch() and next(). `Batch` is movable.
template <typename Batch>
class Loader {
 public:
  // Makes one batch of these samples of the data set. Called on up to num_threads threads at a
  // time, never twice for the same batch of an epoch.
  using Load = std::function<Batch(const std::vector<std::int64_t>& indices)>;

  // Throws Error(kInvalidArgument): a batch size or prefetch below 1, negative threads.
  Loader(const DistributedSampler& sampler, const LoaderOptions& options, Load load)
      : sampler_(sampler),
        options_(options),
        load_(std::move(load)),
        prefetcher_(check(options).num_threads, options.prefetch) {}

  // Begins epoch `epoch`: its batches come in the sampler's order, from sample `first_sample` of
  // this rank on. A training that goes on in the middle of an epoch needs that. Drops the rest of
  // the epoch before, and waits for the loads under way. Loading begins at once. Throws
  // Error(kInvalidArgument) for a negative sample, or one beyond the end (at the end there are no
  // batches).
  void set_epoch(std::uint64_t epoch, std::int64_t first_sample = 0) {
    if (first_sample < 0 || first_sample > sampler_.size()) {
      throw Error(ErrorCode::kInvalidArgument, "a loader's epoch can't begin at sample " +
                                                   std::to_string(first_sample) + ": a rank has " +
                                                   std::to_string(sampler_.size()) + " of them");
    }
    has_epoch_ = true;
    auto order = std::make_shared<const std::vector<std::int64_t>>(sampler_.indices(epoch));
    const std::int64_t left = sampler_.size() - first_sample;
    const std::int64_t round_up = options_.drop_last ? 0 : options_.batch_size - 1;
    const std::int64_t num = left > 0 ? (left + round_up) / options_.batch_size : 0;
    prefetcher_.begin(static_cast<std::size_t>(num), [=, this](std::size_t place) {
      const auto begin = first_sample + static_cast<std::int64_t>(place) * options_.batch_size;
      const auto end = std::min(begin + options_.batch_size, sampler_.size());
      const std::vector<std::int64_t> indices(order->begin() + begin, order->begin() + end);
      return std::static_pointer_cast<void>(std::make_shared<Batch>(load_(indices)));
    });
  }

  // Returns the next batch; nullopt: the epoch is over. If loading a batch threw, rethrows that
  // after the batches before it, and again until set_epoch(). Throws Error(kInvalidArgument) before
  // the first set_epoch().
  std::optional<Batch> next() {
    if (!has_epoch_) {
      throw Error(ErrorCode::kInvalidArgument, "a loader has no batches before set_epoch()");
    }
    const std::chrono::nanoseconds before = waited();
    const Prefetcher::Item item = prefetcher_.next();
    if (options_.progress != nullptr) options_.progress->add_loading(waited() - before);
    if (!item) return std::nullopt;
    return std::move(*static_cast<Batch*>(item.get()));
  }

  // Returns how long next() has made the training wait, since construction.
  std::chrono::nanoseconds waited() const { return prefetcher_.waited(); }

 private:
  static const LoaderOptions& check(const LoaderOptions& options);

  // Constant after construction.
  const DistributedSampler sampler_;
  const LoaderOptions options_;
  const Load load_;

  bool has_epoch_ = false;
  Prefetcher prefetcher_;  // last: its threads end before the other members
};

template <typename Batch>
const LoaderOptions& Loader<Batch>::check(const LoaderOptions& options) {
  if (options.batch_size < 1) {
    throw Error(ErrorCode::kInvalidArgument, "a loader's batch has at least one sample");
  }
  return options;
}

}  // namespace ddprun
