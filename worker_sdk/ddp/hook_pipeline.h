// SPDX-License-Identifier: Apache-2.0
// Drives a CommHook through its steps for all buckets of an iteration, in the same order on every
// rank, beside backward. One thread: the one that runs backward.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "worker_sdk/core/communicator.h"
#include "worker_sdk/ddp/comm_hook.h"

namespace ddprun {

class HookPipeline {
 public:
  // `communicator` must outlive the pipeline.
  HookPipeline(std::shared_ptr<CommHook> hook, Communicator& communicator)
      : hook_(std::move(hook)), communicator_(communicator) {}
  // In the middle of an iteration: as ~Reducer.
  ~HookPipeline();
  HookPipeline(const HookPipeline&) = delete;
  HookPipeline& operator=(const HookPipeline&) = delete;

  // Between iterations. Collective. Throws what CommHook::prepare() throws.
  void adopt(std::vector<GradBucket> buckets);

  // Issues bucket `index`'s first step, then each earlier bucket's next one, for which it waits
  // where it must. Bucket 0 begins an iteration; each later one follows its predecessor.
  // The work is complete when the bucket's collectives all are; its wait() issues what is missing,
  // of all buckets in turn, and returns with the result in the bucket. It must not outlive this.
  WorkPtr launch(std::size_t index);

  // Between iterations; tells the hook (CommHook::take_back). `parameter`: of any bucket.
  void take_back(std::size_t parameter);

  const GradientTraffic& traffic() const { return traffic_; }

 private:
  class BucketWork;
  struct Flight {
    int next_step = 0;  // num_steps() + 1: the result is in the bucket
    WorkPtr under_way{};
  };

  void clear_padding(const GradBucket& bucket);
  void advance(std::size_t index);
  bool finishes_next(std::size_t index) const;
  bool is_completed(std::size_t index) const;
  void finish(std::size_t index);
  void give_up(std::size_t index);

  // Constant after construction.
  const std::shared_ptr<CommHook> hook_;  // the other owner: the user, who reads its state
  Communicator& communicator_;

  std::vector<GradBucket> buckets_;
  std::vector<Flight> flights_;  // of the iteration under way, by bucket
  bool failed_ = false;          // an operation has: none is issued any more
  GradientTraffic traffic_;
};

}  // namespace ddprun
