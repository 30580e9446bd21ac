// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/ddp/reducer.h"

#include <algorithm>
#include <numeric>

#include "common/check.h"
#include "common/text.h"
#include "common/throw_error.h"
#include "worker_sdk/ddp/bucket_shards.h"

namespace ddprun {
namespace {

// One place is filled while the other's gradients are being sent.
constexpr std::size_t kNumPlaces = 2;

}  // namespace

// Runs a CommHook's steps for all buckets of an iteration while backward runs, in the same order on
// every rank.
class HookPipeline {
 public:
  // `communicator` must outlive the pipeline.
  HookPipeline(std::shared_ptr<CommHook> hook, Communicator& communicator)
      : hook_(std::move(hook)), communicator_(communicator) {}
  HookPipeline(const HookPipeline&) = delete;
  HookPipeline& operator=(const HookPipeline&) = delete;

  // In the middle of an iteration it does as ~Reducer.
  ~HookPipeline() {
    for (Flight& flight : flights_) {
      if (!flight.under_way || flight.under_way->is_completed()) continue;
      communicator_.abort("gradients were dropped while they were averaged");
      try {
        flight.under_way->wait();
      } catch (const Error&) {
        // Its error says that it was aborted, which is known here.
      }
    }
  }

  // Sets the hook's buckets, between iterations. Collective. Throws what CommHook::prepare()
  // throws.
  void adopt(std::vector<GradBucket> buckets) {
    const std::uint64_t iteration = buckets_.empty() ? 0 : buckets_.front().iteration;
    buckets_ = std::move(buckets);
    for (GradBucket& bucket : buckets_) bucket.iteration = iteration;
    flights_.clear();
    hook_->prepare(buckets_, communicator_);
  }

  // Issues bucket `index`'s first step, then each earlier bucket's next one, for which it waits if
  // it must. Bucket 0 begins an iteration; each later one follows its predecessor.
  // The returned work is complete when all of the bucket's collectives are. Its wait() issues the
  // missing steps of all buckets in turn, and returns when the result is in the bucket. It must not
  // outlive this object.
  WorkPtr launch(std::size_t index) {
    if (index == 0) flights_.clear();
    DDPRUN_CHECK(index == flights_.size() && index < buckets_.size());
    flights_.emplace_back();
    clear_padding(buckets_[index]);
    try {
      advance(index);
      for (std::size_t earlier = 0; earlier < index; ++earlier) {
        // The last step issues nothing, so this need not wait for it.
        if (!finishes_next(earlier) || is_completed(earlier)) advance(earlier);
      }
    } catch (...) {
      failed_ = true;
      throw;
    }
    traffic_.uncompressed_bytes += buckets_[index].view.size_bytes();
    return std::make_shared<BucketWork>(*this, index);
  }

  // Tells the hook (CommHook::take_back), between iterations. `parameter` may be of any bucket.
  void take_back(std::size_t parameter) {
    for (const GradBucket& bucket : buckets_) {
      for (const GradBucket::Gradient& gradient : bucket.gradients) {
        if (gradient.parameter == parameter) return hook_->take_back(gradient);
      }
    }
  }

  const GradientTraffic& traffic() const { return traffic_; }

 private:
  class BucketWork : public Work {
   public:
    BucketWork(HookPipeline& pipeline, std::size_t index) : pipeline_(pipeline), index_(index) {}
    bool is_completed() override { return pipeline_.is_completed(index_); }
    void wait() override { pipeline_.finish(index_); }

   private:
    HookPipeline& pipeline_;
    const std::size_t index_;
  };
  struct Flight {
    int next_step = 0;  // num_steps() + 1: the result is in the bucket
    WorkPtr under_way{};
  };

  // Clears the padding, where a hook may have left anything. A GPU's memory can't be written here;
  // there the hook has to do it.
  void clear_padding(const GradBucket& bucket) {
    if (bucket.view.device.kind != Device::Kind::kCpu) return;
    auto* end = static_cast<std::byte*>(bucket.view.data);
    const auto clear_until = [&](std::byte* next) { std::fill(end, next, std::byte{0}); };
    for (const GradBucket::Gradient& gradient : bucket.gradients) {
      auto* const begin = static_cast<std::byte*>(gradient.view.data);
      clear_until(begin);
      end = begin + gradient.view.size_bytes();
    }
    clear_until(static_cast<std::byte*>(bucket.view.data) + bucket.view.size_bytes());
  }

  bool finishes_next(std::size_t index) const {
    return flights_[index].next_step >= hook_->num_steps();
  }

  bool is_completed(std::size_t index) const {
    const WorkPtr& under_way = flights_[index].under_way;
    return finishes_next(index) && (!under_way || under_way->is_completed());
  }

  void advance(std::size_t index) {
    Flight& flight = flights_[index];
    if (flight.next_step > hook_->num_steps()) return;
    if (flight.under_way) flight.under_way->wait();
    flight.under_way.reset();
    const HookStep step = hook_->run(buckets_[index], flight.next_step, communicator_);
    flight.under_way = step.work;
    traffic_.sent_bytes += step.sent_bytes;
    if (++flight.next_step > hook_->num_steps()) ++buckets_[index].iteration;
  }

  void finish(std::size_t index) {
    if (failed_) return give_up(index);
    try {
      for (bool issued = true; issued;) {
        issued = false;
        for (std::size_t bucket = 0; bucket < flights_.size(); ++bucket) {
          if (finishes_next(bucket)) continue;
          advance(bucket);
          issued = true;
        }
      }
      advance(index);
    } catch (...) {
      failed_ = true;
      throw;
    }
  }

  // Waits until nothing works on the bucket's memory, then throws.
  void give_up(std::size_t index) {
    if (flights_[index].under_way) flights_[index].under_way->wait();
    throw Error(ErrorCode::kAborted, "the gradients' communication had failed before");
  }

  const std::shared_ptr<CommHook> hook_;  // shared with the user, who reads its state
  Communicator& communicator_;
  std::vector<GradBucket> buckets_;
  std::vector<Flight> flights_;  // of the iteration under way, by bucket
  bool failed_ = false;          // an operation has failed, so no further one is issued
  GradientTraffic traffic_;
};

Reducer::Reducer(Communicator& communicator, std::vector<ParameterSpec> parameters,
                 const BucketLimits& limits, ReducerSharding sharding)
    : communicator_(communicator),
      parameters_(std::move(parameters)),
      limits_(limits_for(communicator.backend(), limits)),
      average_(average_plan(communicator.backend(), communicator.size())),
      sharding_(std::move(sharding)) {
  for (const ParameterSpec& parameter : parameters_) {
    if (!(parameter.device == parameters_.front().device)) {
      throw_invalid("parameter ", parameter.name, " is on another device than ",
                    parameters_.front().name, ": move the model to one device first");
    }
  }
  if (sharding_.stage != ZeroStage::kOff) {
    divide();
    return;
  }
  arena_ = communicator_.allocate(std::max<std::size_t>(arena_bytes(parameters_), 1));
  adopt(plan_without_order(parameters_));
}

// Forms the buckets for good: a rank's part of the optimiser's state belongs to its part of them.
void Reducer::divide() {
  DDPRUN_CHECK(sharding_.stage != ZeroStage::kGradients || sharding_.before_sending);
  order_.resize(parameters_.size());
  std::iota(order_.rbegin(), order_.rend(), std::size_t{0});
  rebuilt_ = true;
  plan_ = plan_by_arrival(parameters_, order_, limits_);
  const auto num_ranks = static_cast<std::size_t>(communicator_.size());
  layout_ = lay_out_for(parameters_, plan_, num_ranks);
  std::size_t place_bytes[kNumPlaces] = {};
  std::size_t all_bytes = 0;
  for (std::size_t b = 0; b < plan_.size(); ++b) {
    const BucketLayout::Bucket& bucket = layout_.buckets[b];
    const std::size_t size_bytes = bucket.count * size_of(bucket.dtype);
    place_bytes[b % kNumPlaces] = std::max(place_bytes[b % kNumPlaces], size_bytes);
    shard_at_.push_back(all_bytes / num_ranks);
    all_bytes += size_bytes;
  }
  if (sharding_.stage == ZeroStage::kGradients) {
    for (std::size_t b = 0; b < plan_.size(); ++b) {
      places_.push_back(b % kNumPlaces == 0 ? 0 : place_bytes[0]);
    }
    shards_ = communicator_.allocate(std::max<std::size_t>(all_bytes / num_ranks, 1));
    all_bytes = place_bytes[0] + place_bytes[1];
  }
  arena_ = communicator_.allocate(std::max<std::size_t>(all_bytes, 1));
  start_iteration();
}

Reducer::~Reducer() {
  if (pipeline_) return;  // the pipeline ends its own operations, without the hook's next steps
  const auto under_way = [](const WorkPtr& work) { return !work->is_completed(); };
  if (std::ranges::none_of(works_, under_way)) return;
  communicator_.abort("gradients were dropped while they were averaged");
  for (const WorkPtr& work : works_) {
    try {
      work->wait();
    } catch (const Error&) {
      // Its error says that it was aborted, which is known here.
    }
  }
}

void Reducer::adopt(BucketPlan plan) {
  plan_ = std::move(plan);
  layout_ = lay_out(parameters_, plan_);
  start_iteration();
  if (pipeline_) pipeline_->adopt(hook_buckets());
}

void Reducer::set_hook(std::shared_ptr<CommHook> hook) {
  pipeline_.reset();
  traffic_ = {};
  if (!hook) return;
  pipeline_ = std::make_unique<HookPipeline>(std::move(hook), communicator_);
  pipeline_->adopt(hook_buckets());
}

const GradientTraffic& Reducer::traffic() const {
  return pipeline_ ? pipeline_->traffic() : traffic_;
}

std::vector<GradBucket> Reducer::hook_buckets() const {
  std::vector<GradBucket> buckets;
  for (std::size_t b = 0; b < plan_.size(); ++b) {
    buckets.push_back({.index = b, .view = bucket(b)});
    for (const std::size_t index : plan_[b]) {
      buckets.back().gradients.push_back({.parameter = index,
                                          .name = parameters_[index].name,
                                          .shape = parameters_[index].shape,
                                          .view = gradient(index)});
    }
  }
  return buckets;
}

void Reducer::start_iteration() {
  ready_.assign(parameters_.size(), false);
  num_missing_.resize(plan_.size());
  for (std::size_t b = 0; b < plan_.size(); ++b) num_missing_[b] = plan_[b].size();
  works_.clear();
  arrival_.clear();
  current_ = {};
}

TensorView Reducer::gradient(std::size_t index) const {
  const ParameterSpec& parameter = parameters_[index];
  const BucketLayout::Slot& slot = layout_.slots[index];
  const std::size_t within = slot.offset_bytes - layout_.buckets[slot.bucket].offset_bytes;
  return {.data = static_cast<std::byte*>(bucket(slot.bucket).data) + within,
          .count = parameter.count,
          .dtype = parameter.dtype,
          .device = parameter.device};
}

TensorView Reducer::bucket(std::size_t number) const {
  const BucketLayout::Bucket& bucket = layout_.buckets[number];
  const std::size_t place = places_.empty() ? bucket.offset_bytes : places_[number];
  return {.data = static_cast<std::byte*>(arena_->data()) + place,
          .count = bucket.count,
          .dtype = bucket.dtype,
          .device = bucket.device};
}

TensorView Reducer::shard(std::size_t number) const {
  DDPRUN_CHECK(sharding_.stage != ZeroStage::kOff);
  TensorView part = shard_of(bucket(number), static_cast<std::size_t>(communicator_.rank()),
                             static_cast<std::size_t>(communicator_.size()));
  if (shards_) part.data = static_cast<std::byte*>(shards_->data()) + shard_at_[number];
  return part;
}

std::size_t Reducer::size_bytes() const {
  return arena_->size_bytes() + (shards_ ? shards_->size_bytes() : 0);
}

void Reducer::mark_ready(std::size_t index) {
  DDPRUN_CHECK(index < parameters_.size());
  if (ready_[index]) {
    throw_invalid("the gradient of ", parameters_[index].name,
                  " became ready twice in one iteration: run backward once per forward, or "
                  "wrap all but the last in no_sync");
  }
  current_.backward_end = Clock::now();
  if (arrival_.empty()) {
    current_.first_ready = current_.backward_end;
    mark(StepMark::kFirstReady);
  }
  ready_[index] = true;
  arrival_.push_back(index);
  if (is_complete()) mark(StepMark::kBackwardEnd);  // before a launch, which may wait
  if (--num_missing_[layout_.slots[index].bucket] == 0) launch_complete_buckets();
}

void Reducer::launch_complete_buckets() {
  // Buckets are launched strictly in order, so that every rank issues the same sequence, even if
  // its gradients come in another order.
  for (std::size_t b = works_.size(); b < plan_.size() && num_missing_[b] == 0; ++b) {
    const TensorView view = bucket(b);
    if (b == 0) mark(StepMark::kLaunched);
    current_.buckets.push_back({.size_bytes = view.size_bytes(), .launched = Clock::now()});
    works_.push_back(launch(b));
    if (!pipeline_) traffic_.uncompressed_bytes = traffic_.sent_bytes += view.size_bytes();
  }
}

WorkPtr Reducer::launch(std::size_t number) {
  if (sharding_.stage == ZeroStage::kGradients && number >= kNumPlaces) {
    works_[number - kNumPlaces]->wait();  // this frees the bucket's place
  }
  if (sharding_.before_sending) sharding_.before_sending(number);
  if (pipeline_) return pipeline_->launch(number);
  if (sharding_.stage == ZeroStage::kOff) {
    return communicator_.all_reduce(bucket(number), average_.op, {.async = true});
  }
  return communicator_.reduce_scatter(bucket(number), shard(number), average_.op, {.async = true});
}

void Reducer::finalize(std::string_view advice) {
  if (!is_complete()) {
    throw_invalid("backward gave no gradient for ", unmarked_names(), " on rank ",
                  communicator_.rank(), ": ", advice);
  }
  for (std::size_t b = 0; b < works_.size(); ++b) {
    current_.buckets[b].done_at_backward_end = works_[b]->is_completed();
  }
  for (std::size_t b = 0; b < works_.size(); ++b) {
    works_[b]->wait();
    current_.buckets[b].waited = Clock::now();
  }
  mark(StepMark::kFinished);
  current_.finished = Clock::now();
  trace_ = std::exchange(current_, {});
  if (first_arrival_.empty()) first_arrival_ = arrival_;
  start_iteration();
}

void Reducer::take_back(std::size_t index) {
  if (pipeline_) pipeline_->take_back(index);
}

void Reducer::rebuild(std::span<const std::size_t> arrival) {
  DDPRUN_CHECK(sharding_.stage == ZeroStage::kOff);
  adopt(plan_by_arrival(parameters_, arrival, limits_));
  order_.assign(arrival.begin(), arrival.end());
  rebuilt_ = true;
}

std::string Reducer::unmarked_names() const {
  constexpr std::size_t kMaxNames = 8;
  std::vector<std::string_view> names;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!ready_[i]) names.push_back(parameters_[i].name);
  }
  return first_listed(names, kMaxNames);
}

}  // namespace ddprun
