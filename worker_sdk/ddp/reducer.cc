// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/ddp/reducer.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "common/check.h"
#include "common/error.h"
#include "common/log.h"
#include "worker_sdk/ddp/bucket_shards.h"
#include "worker_sdk/ddp/hook_pipeline.h"

namespace ddprun {
namespace {

// One is filled while the other's gradients are on their way.
constexpr std::size_t kNumPlaces = 2;

}  // namespace

Reducer::Reducer(Communicator& communicator, std::vector<ParameterSpec> parameters,
                 const BucketLimits& limits, ReducerSharding sharding)
    : communicator_(communicator),
      parameters_(std::move(parameters)),
      limits_(limits_for(communicator.backend(), limits)),
      average_(average_plan(communicator.backend(), communicator.size())),
      sharding_(std::move(sharding)) {
  for (const ParameterSpec& parameter : parameters_) {
    if (!(parameter.device == parameters_.front().device)) {
      throw Error(ErrorCode::kInvalidArgument,
                  concat("parameter ", parameter.name, " is on another device than ",
                         parameters_.front().name, ": move the model to one device first"));
    }
  }
  if (sharding_.stage != ZeroStage::kOff) {
    divide();
    return;
  }
  arena_ = communicator_.allocate(std::max<std::size_t>(arena_bytes(parameters_), 1));
  adopt(plan_without_order(parameters_));
}

// Buckets for good, for what a rank has of the optimiser's state goes with its part of them.
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
  if (pipeline_) return;  // it ends what is under way, without the hook's next steps
  const auto under_way = [](const WorkPtr& work) { return !work->is_completed(); };
  if (std::none_of(works_.begin(), works_.end(), under_way)) return;
  communicator_.abort("gradients were dropped while they were averaged");
  for (const WorkPtr& work : works_) {
    try {
      work->wait();
    } catch (const Error&) {
      // That it was aborted.
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
    throw Error(ErrorCode::kInvalidArgument,
                concat("the gradient of ", parameters_[index].name,
                       " became ready twice in one iteration: run backward once per forward, or "
                       "wrap all but the last in no_sync"));
  }
  current_.backward_end = Clock::now();
  if (arrival_.empty()) current_.first_ready = current_.backward_end;
  ready_[index] = true;
  arrival_.push_back(index);
  if (--num_missing_[layout_.slots[index].bucket] == 0) launch_complete_buckets();
}

void Reducer::launch_complete_buckets() {
  // Strictly in order, so that every rank issues the same sequence whatever order its gradients
  // have.
  for (std::size_t b = works_.size(); b < plan_.size() && num_missing_[b] == 0; ++b) {
    const TensorView view = bucket(b);
    current_.buckets.push_back({.size_bytes = view.size_bytes(), .launched = Clock::now()});
    works_.push_back(launch(b));
    if (!pipeline_) traffic_.uncompressed_bytes = traffic_.sent_bytes += view.size_bytes();
  }
}

WorkPtr Reducer::launch(std::size_t number) {
  if (sharding_.stage == ZeroStage::kGradients && number >= kNumPlaces) {
    works_[number - kNumPlaces]->wait();  // its place is free then
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
    throw Error(ErrorCode::kInvalidArgument,
                concat("backward gave no gradient for ", unmarked_names(), " on rank ",
                       communicator_.rank(), ": ", advice));
  }
  for (std::size_t b = 0; b < works_.size(); ++b) {
    current_.buckets[b].done_at_backward_end = works_[b]->is_completed();
  }
  for (std::size_t b = 0; b < works_.size(); ++b) {
    works_[b]->wait();
    current_.buckets[b].waited = Clock::now();
  }
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
  std::string names;
  std::size_t num_unmarked = 0;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (ready_[i]) continue;
    if (++num_unmarked <= kMaxNames) names += (names.empty() ? "" : ", ") + parameters_[i].name;
  }
  if (num_unmarked > kMaxNames) names += concat(" and ", num_unmarked - kMaxNames, " more");
  return names;
}

}  // namespace ddprun
