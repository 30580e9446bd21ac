// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/ddp/distributed_sampler.h"

#include <limits>
#include <numeric>
#include <random>
#include <utility>

#include "common/throw_error.h"

namespace ddprun {
namespace {

// PyTorch's generator is the standard mt19937 over the seed's low 32 bits.
class TorchGenerator {
 public:
  explicit TorchGenerator(std::uint64_t seed) : engine_(static_cast<std::uint32_t>(seed)) {}
  std::uint64_t random32() { return engine_(); }
  std::uint64_t random64() {
    const std::uint64_t high = random32();
    return high << 32 | random32();
  }

 private:
  std::mt19937 engine_;
};

}  // namespace

std::vector<std::int64_t> random_permutation(std::int64_t n, std::uint64_t seed) {
  std::vector<std::int64_t> result(static_cast<std::size_t>(n));
  const auto count = static_cast<std::uint64_t>(n);
  TorchGenerator generator(seed);
  if (count < std::numeric_limits<std::uint32_t>::max() / 20) {
    std::iota(result.begin(), result.end(), std::int64_t{0});
    for (std::uint64_t i = 0; i + 1 < count; ++i) {
      std::swap(result[i], result[i + generator.random32() % (count - i)]);
    }
  } else {  // 32 random bits would be biased: PyTorch takes 64, in the other direction
    for (std::uint64_t i = 0; i < count; ++i) {
      const std::uint64_t other = generator.random64() % (i + 1);
      result[i] = static_cast<std::int64_t>(i);
      std::swap(result[i], result[other]);
    }
  }
  return result;
}

DistributedSampler::DistributedSampler(std::int64_t num_samples, int world_size, int rank,
                                       const SamplerOptions& options)
    : num_samples_(num_samples), world_size_(world_size), rank_(rank), options_(options) {
  if (num_samples < 0 || world_size < 1 || rank < 0 || rank >= world_size) {
    throw_invalid("DistributedSampler: ", num_samples, " samples for rank ", rank, " of ",
                  world_size, ": needs samples >= 0 and rank in 0…", world_size - 1);
  }
  if (options.drop_last && options.uneven) {
    throw_invalid("DistributedSampler: drop_last and uneven exclude each other");
  }
  const std::int64_t tail = num_samples % world_size;
  const bool one_more = options.uneven ? rank < tail : tail != 0 && !options.drop_last;
  samples_per_rank_ = num_samples / world_size + (one_more ? 1 : 0);
}

std::vector<std::int64_t> DistributedSampler::indices(std::uint64_t epoch) const {
  std::vector<std::int64_t> order;
  if (options_.shuffle) order = random_permutation(num_samples_, options_.seed + epoch);
  std::vector<std::int64_t> mine(static_cast<std::size_t>(samples_per_rank_));
  for (std::int64_t i = 0; i < samples_per_rank_; ++i) {
    // Positions past the end wrap to the start, as often as needed.
    const std::int64_t position = (rank_ + i * world_size_) % num_samples_;
    mine[static_cast<std::size_t>(i)] =
        options_.shuffle ? order[static_cast<std::size_t>(position)] : position;
  }
  return mine;
}

}  // namespace ddprun
