// SPDX-License-Identifier: Apache-2.0
// Communication hooks: a hook makes a bucket of gradients the average of all ranks' buckets in
// another way than one plain all-reduce, for example compressed. PyTorch's DDP communication hooks,
// for C++. docs/compression.md has the hooks of ddprun, and one written in 20 lines.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "worker_sdk/core/communicator.h"

namespace ddprun {

// A bucket as a hook sees it. Valid until CommHook::prepare() is called again.
struct GradBucket {
  struct Gradient {
    std::size_t parameter = 0;  // its place in the model's list, which never changes
    std::string name;
    std::vector<std::int64_t> shape{};
    TensorView view{};  // within the bucket; all ranks have the same order in memory
  };
  std::size_t index = 0;  // buckets are launched in the order 0, 1, 2 …
  TensorView view;        // the whole bucket; bytes between gradients are unused, zero at first
  std::vector<Gradient> gradients{};  // in memory order
  std::uint64_t iteration = 0;        // number of averaged backwards with this hook so far
};

// A tensor that a hook keeps between iterations. A training that resumes needs it.
struct HookTensor {
  std::string name;  // "error.fc1.weight"
  std::vector<std::int64_t> shape{};
  TensorView view;  // read it to save, write it to load, between iterations
  // False: the same on all ranks. True: each rank has its own, and only the ranks' mean matters:
  // save that, and load it on every rank, however many there are.
  bool per_rank = false;
};

// One step of one bucket.
struct HookStep {
  WorkPtr work = nullptr;        // the collective that this step issued; null: none
  std::uint64_t sent_bytes = 0;  // bytes that this rank gave to collectives
};

// A hook's calls come from the thread that runs backward. Every rank has the same hook with the
// same options. A hook that keeps a CommBuffer must be destroyed before the communicator.
class CommHook {
 public:
  virtual ~CommHook() = default;

  // Tells the hook its buckets: before the first iteration, and once more when the final buckets
  // are formed. Collective: the place for Communicator::allocate(). Throws Error(kInvalidArgument)
  // for buckets that the hook can't work on.
  virtual void prepare(std::span<const GradBucket> /*buckets*/, Communicator& /*communicator*/) {}

  // Returns how many steps of a bucket issue collectives. All ranks issue those of all buckets in
  // the same order. Bucket b's step s comes with the launch of bucket b + s, or at the end of
  // backward.
  virtual int num_steps() const { return 1; }

  // `step` = 0 … num_steps() − 1: issues one collective, with {.async = true}, and returns it. The
  // collective of the step before is complete. `step` = num_steps(): issues nothing; when it
  // returns, the bucket holds the result, which must be the same on all ranks.
  // Step 0 runs in the middle of backward: the bucket holds this rank's gradients.
  virtual HookStep run(const GradBucket& bucket, int step, Communicator& communicator) = 0;

  // Called when the iteration that has just ended had no use for this gradient on any rank: its
  // average is dropped. The view holds the average, less what this rank had put in. A hook that
  // keeps errors takes it back. Called on all ranks alike.
  virtual void take_back(const GradBucket::Gradient& /*gradient*/) {}

  virtual std::vector<HookTensor> state() { return {}; }
};

// Bytes that a rank gave to collectives for its gradients, with a hook and without one (the
// buckets' bytes). How often a byte then crosses a wire depends on the collective.
struct GradientTraffic {
  std::uint64_t uncompressed_bytes = 0;
  std::uint64_t sent_bytes = 0;
};

}  // namespace ddprun
