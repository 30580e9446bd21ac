// SPDX-License-Identifier: Apache-2.0
// Averages gradients over all ranks, bucket by bucket, while backward still computes the others.
// See Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", VLDB
// 2020. Knows parameters only as numbers with a size: worker_sdk/torch connects it to autograd. One
// thread at a time: the one that runs backward.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "worker_sdk/core/communicator.h"
#include "worker_sdk/ddp/average_plan.h"
#include "worker_sdk/ddp/bucket_plan.h"
#include "worker_sdk/ddp/comm_hook.h"
#include "worker_sdk/ddp/zero_stage.h"

namespace ddprun {

class HookPipeline;

// How the ranks divide the averages (docs/zero.md). Off: every rank has all of them.
struct ReducerSharding {
  ZeroStage stage = ZeroStage::kOff;
  // Called when bucket `number` and all before it are complete, just before it is sent. With
  // kGradients it must copy the bucket's gradients to where Reducer::gradient() says.
  std::function<void(std::size_t number)> before_sending{};
};

// When each thing happened in the last finished iteration, for reports and for the proof of
// overlap.
struct IterationTrace {
  struct Bucket {
    std::size_t size_bytes = 0;
    Clock::time_point launched{};       // its all-reduce was issued
    Clock::time_point waited{};         // finalize() had its result
    bool done_at_backward_end = false;  // entirely hidden behind backward
  };
  Clock::time_point first_ready{};   // the first gradient of the iteration
  Clock::time_point backward_end{};  // the last one
  Clock::time_point finished{};      // all averages are in place
  std::vector<Bucket> buckets;       // in launch order

  // Communication time that backward did not hide.
  Clock::duration exposed() const { return finished - backward_end; }
};

// The moments of a step that DeviceSteps asks for.
enum class StepMark { kForward, kFirstReady, kLaunched, kBackwardEnd, kFinished };
inline constexpr std::size_t kNumStepMarks = 5;

// An iteration is mark_ready() once for each parameter, then finalize(). rebuild() comes between
// iterations, or before the first. Every rank does the same with the same parameters.
//
// With a ReducerSharding each bucket is reduce-scattered, not all-reduced: this rank's shard() of
// it holds averages, the rest of the bucket nothing of use. Buckets are then formed once, the last
// parameters first, and with kGradients they take turns in two pieces of memory.
//
// After an error of the communicator the reducer is of no further use.
class Reducer {
 public:
  // Collective: allocates the gradients' memory, zeroed. `communicator` must outlive the reducer.
  // All parameters lie on one device; else Error(kInvalidArgument) naming one that does not.
  Reducer(Communicator& communicator, std::vector<ParameterSpec> parameters,
          const BucketLimits& limits = {}, ReducerSharding sharding = {});
  // In the middle of an iteration (backward threw) it first ends the all-reduces under way by
  // Communicator::abort(), for it frees their memory.
  ~Reducer();

  // Makes `hook` average the buckets from the next iteration on; null: the plain all-reduce does.
  // Collective, between iterations. Throws what CommHook::prepare() throws.
  void set_hook(std::shared_ptr<CommHook> hook);

  // From now on `marker` is called for each mark of an iteration but kForward. The thread that runs
  // backward calls it. kLaunched comes just before the first bucket is sent.
  void set_marker(std::function<void(StepMark)> marker) { marker_ = std::move(marker); }

  // Sums over all iterations since the hook was set.
  const GradientTraffic& traffic() const;

  // The memory of parameter `index`'s gradient, `count` elements. It moves only in rebuild(). With
  // kGradients other buckets' gradients use it at other times.
  TensorView gradient(std::size_t index) const;

  // The buckets in launch order, padding included. They move only in rebuild().
  std::size_t num_buckets() const { return layout_.buckets.size(); }
  TensorView bucket(std::size_t number) const;
  const BucketPlan& plan() const { return plan_; }
  const BucketLayout& layout() const { return layout_; }
  const std::vector<ParameterSpec>& parameters() const { return parameters_; }

  // The caller multiplies every gradient in a bucket by this before it is sent. It does so when it
  // copies the gradient into the slot, or at the latest in ReducerSharding::before_sending. 1: no
  // need.
  double factor() const { return pipeline_ ? 1 : average_.factor; }

  // The memory of this rank's part of the averages in bucket `number`. With a ReducerSharding only.
  TensorView shard(std::size_t number) const;

  // Returns the bytes of all memory for gradients.
  std::size_t size_bytes() const;

  // Says that the gradient is in its slot (kGradients: can be collected). Once a bucket and all
  // before it are complete, its all-reduce (average) is issued, asynchronously. Throws
  // Error(kInvalidArgument) if marked twice in one iteration.
  void mark_ready(std::size_t index);

  // True while some are marked and finalize() has not ended the iteration.
  bool is_under_way() const { return !arrival_.empty(); }
  bool is_ready(std::size_t index) const { return ready_[index]; }
  // True if all are marked: the iteration's last all-reduce has been issued.
  bool is_complete() const { return arrival_.size() == parameters_.size(); }

  // Ends the iteration: returns when all averages are in the slots. Error(kInvalidArgument) names
  // the parameters that were not marked, and ends with `advice`; the other ranks then wait for this
  // one until their deadline. Throws the communicator's errors.
  void finalize(std::string_view advice = "every parameter must be marked");

  // Called after finalize() if nobody wants this average. Its slot holds it, less what this rank
  // had put in, for the hook to take back (CommHook::take_back). Called on all ranks alike.
  void take_back(std::size_t index);

  // True after the first finalize(), until rebuild(). Never with a ReducerSharding.
  bool wants_rebuild() const { return !first_arrival_.empty() && !rebuilt_; }

  // The order in which this rank's gradients became ready in the first iteration.
  const std::vector<std::size_t>& first_arrival() const { return first_arrival_; }

  // The order given to rebuild(). Before that it is first_arrival(), which is empty before the
  // first finalize().
  const std::vector<std::size_t>& order() const { return rebuilt_ ? order_ : first_arrival_; }

  // Forms the buckets anew by `arrival`, a permutation of all indices. It must be the same on all
  // ranks: rank 0's first_arrival(), or that of a run before. The slots' contents are lost. Not
  // with a ReducerSharding.
  void rebuild(std::span<const std::size_t> arrival);

  // The last finished iteration.
  const IterationTrace& trace() const { return trace_; }

 private:
  void adopt(BucketPlan plan);
  void divide();
  WorkPtr launch(std::size_t number);
  void start_iteration();
  std::vector<GradBucket> hook_buckets() const;
  void launch_complete_buckets();
  void mark(StepMark mark) const {
    if (marker_) marker_(mark);
  }
  std::string unmarked_names() const;

  // Constant after construction.
  Communicator& communicator_;
  std::vector<ParameterSpec> parameters_;
  BucketLimits limits_;
  const AveragePlan average_;
  const ReducerSharding sharding_;
  std::unique_ptr<CommBuffer> arena_;
  // kGradients: where each bucket lies in the arena, and its shard in shards_; in bytes.
  std::unique_ptr<CommBuffer> shards_;
  std::vector<std::size_t> places_, shard_at_;

  std::function<void(StepMark)> marker_;

  // Changed by rebuild().
  BucketPlan plan_;
  BucketLayout layout_;
  bool rebuilt_ = false;
  std::vector<std::size_t> order_;          // if rebuilt_: the order that formed the buckets
  std::unique_ptr<HookPipeline> pipeline_;  // null: no hook
  GradientTraffic traffic_;                 // without a hook
  std::vector<std::size_t> first_arrival_;

  // State of the current iteration.
  std::vector<bool> ready_;               // by parameter
  std::vector<std::size_t> num_missing_;  // by bucket
  std::vector<WorkPtr> works_;            // launched buckets
  std::vector<std::size_t> arrival_;
  IterationTrace current_;

  IterationTrace trace_;
};

}  // namespace ddprun
