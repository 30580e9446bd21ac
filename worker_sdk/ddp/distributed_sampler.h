// SPDX-License-Identifier: Apache-2.0
// Which samples this rank sees in which order: torch.utils.data.DistributedSampler, index for
// index. Pure: no I/O, clock or thread.
#pragma once

#include <cstdint>
#include <vector>

namespace ddprun {

// The same as `torch.randperm(n, generator=g)` after `g.manual_seed(seed)` on the CPU: Fisher-Yates
// over mt19937. n >= 0.
std::vector<std::int64_t> random_permutation(std::int64_t n, std::uint64_t seed);

struct SamplerOptions {
  bool shuffle = true;
  std::uint64_t seed = 0;  // the same on all ranks
  // How to treat a tail that the ranks can't share equally. Both false: samples from the start are
  // repeated.
  bool drop_last = false;  // no rank sees the tail
  bool uneven = false;     // each is seen once; the first ranks have one more (DdpBase::join)
};

class DistributedSampler {
 public:
  // Throws Error(kInvalidArgument): num_samples negative, world_size < 1, rank not in
  // 0…world_size−1, both drop_last and uneven.
  DistributedSampler(std::int64_t num_samples, int world_size, int rank,
                     const SamplerOptions& options = {});

  // This rank's samples per epoch; the same on all ranks unless `uneven`.
  std::int64_t size() const { return samples_per_rank_; }

  // This rank's indices of epoch `epoch`, size() of them. With shuffle, each epoch is a permutation
  // of its own, from seed + epoch.
  std::vector<std::int64_t> indices(std::uint64_t epoch) const;

 private:
  // Constant after construction.
  std::int64_t num_samples_;
  int world_size_;
  int rank_;
  SamplerOptions options_;
  std::int64_t samples_per_rank_;
};

}  // namespace ddprun
