// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/ddp/hook_pipeline.h"

#include <algorithm>

#include "common/check.h"
#include "common/error.h"

namespace ddprun {

class HookPipeline::BucketWork : public Work {
 public:
  BucketWork(HookPipeline& pipeline, std::size_t index) : pipeline_(pipeline), index_(index) {}
  bool is_completed() override { return pipeline_.is_completed(index_); }
  void wait() override { pipeline_.finish(index_); }

 private:
  HookPipeline& pipeline_;
  const std::size_t index_;
};

HookPipeline::~HookPipeline() {
  for (Flight& flight : flights_) {
    if (!flight.under_way || flight.under_way->is_completed()) continue;
    communicator_.abort("gradients were dropped while they were averaged");
    try {
      flight.under_way->wait();
    } catch (const Error&) {
      // That it was aborted.
    }
  }
}

void HookPipeline::adopt(std::vector<GradBucket> buckets) {
  const std::uint64_t iteration = buckets_.empty() ? 0 : buckets_.front().iteration;
  buckets_ = std::move(buckets);
  for (GradBucket& bucket : buckets_) bucket.iteration = iteration;
  flights_.clear();
  hook_->prepare(buckets_, communicator_);
}

WorkPtr HookPipeline::launch(std::size_t index) {
  if (index == 0) flights_.clear();
  DDPRUN_CHECK(index == flights_.size() && index < buckets_.size());
  flights_.emplace_back();
  clear_padding(buckets_[index]);
  try {
    advance(index);
    for (std::size_t earlier = 0; earlier < index; ++earlier) {
      // The last step issues nothing, so nobody need wait for it here.
      if (!finishes_next(earlier) || is_completed(earlier)) advance(earlier);
    }
  } catch (...) {
    failed_ = true;
    throw;
  }
  traffic_.uncompressed_bytes += buckets_[index].view.size_bytes();
  return std::make_shared<BucketWork>(*this, index);
}

// A hook may have left anything there; on a GPU, where this can't write, it stays with the hook.
void HookPipeline::clear_padding(const GradBucket& bucket) {
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

bool HookPipeline::finishes_next(std::size_t index) const {
  return flights_[index].next_step >= hook_->num_steps();
}

bool HookPipeline::is_completed(std::size_t index) const {
  const WorkPtr& under_way = flights_[index].under_way;
  return finishes_next(index) && (!under_way || under_way->is_completed());
}

void HookPipeline::advance(std::size_t index) {
  Flight& flight = flights_[index];
  if (flight.next_step > hook_->num_steps()) return;
  if (flight.under_way) flight.under_way->wait();
  flight.under_way.reset();
  const HookStep step = hook_->run(buckets_[index], flight.next_step, communicator_);
  flight.under_way = step.work;
  traffic_.sent_bytes += step.sent_bytes;
  if (++flight.next_step > hook_->num_steps()) ++buckets_[index].iteration;
}

void HookPipeline::finish(std::size_t index) {
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

void HookPipeline::take_back(std::size_t parameter) {
  for (const GradBucket& bucket : buckets_) {
    for (const GradBucket::Gradient& gradient : bucket.gradients) {
      if (gradient.parameter == parameter) return hook_->take_back(gradient);
    }
  }
}

// Returns or throws when nothing works on the bucket's memory any more.
void HookPipeline::give_up(std::size_t index) {
  if (flights_[index].under_way) flights_[index].under_way->wait();
  throw Error(ErrorCode::kAborted, "the gradients' communication had failed before");
}

}  // namespace ddprun
