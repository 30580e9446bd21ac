// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/ddp/parameter_shard.h"

#include "common/throw_error.h"

namespace ddprun {

ParameterShard::ParameterShard(std::span<float> values, int num_workers, std::uint64_t staleness)
    : values_(values), staleness_(staleness), workers_(static_cast<std::size_t>(num_workers)) {}

const std::vector<int>& ParameterShard::push(int worker, std::span<const float> update) {
  Worker& mine = at(worker);
  if (mine.waits || mine.has_left || update.size() != values_.size()) {
    throw_error(ErrorCode::kProtocol, "worker ", worker, " pushed ", update.size(), " of ",
                values_.size(), " values", mine.has_left ? " after it had left" : "",
                mine.waits ? " before it had its answer" : "");
  }
  ++mine.clock;
  mine.waits = true;
  if (staleness_ == 0) {
    mine.held = update;
  } else {
    add(update);
  }
  return release();
}

const std::vector<int>& ParameterShard::leave(int worker) {
  Worker& mine = at(worker);
  if (mine.waits || mine.has_left) {
    throw_error(ErrorCode::kProtocol, "worker ", worker, " left twice, or while it waits");
  }
  mine.waits = mine.has_left = true;
  return release();
}

int ParameterShard::slowest() const {
  int found = -1;
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    if (workers_[i].has_left) continue;
    if (found < 0 || workers_[i].clock < at(found).clock) found = static_cast<int>(i);
  }
  return found;
}

std::uint64_t ParameterShard::lead_of(int worker) const {
  const int last = slowest();
  if (last < 0 || at(worker).clock < at(last).clock) return 0;
  return at(worker).clock - at(last).clock;
}

void ParameterShard::add(std::span<const float> update) {
  const float share = 1.0F / static_cast<float>(workers_.size());
  for (std::size_t i = 0; i < values_.size(); ++i) values_[i] += share * update[i];
}

// Adds the held updates of a complete round.
void ParameterShard::add_held() {
  for (Worker& worker : workers_) {
    if (!worker.held.empty()) add(worker.held);
    worker.held = {};
  }
}

const std::vector<int>& ParameterShard::release() {
  released_.clear();
  const bool is_over = slowest() < 0;
  const auto may_go = [&](std::size_t i) {
    const Worker& worker = workers_[i];
    if (!worker.waits) return false;
    if (worker.has_left) return is_over;
    return lead_of(static_cast<int>(i)) <= staleness_;
  };
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    if (may_go(i)) released_.push_back(static_cast<int>(i));
  }
  // Without staleness a release means that all updates of the round have come.
  if (staleness_ == 0 && !released_.empty()) add_held();
  for (const int worker : released_) at(worker).waits = false;
  return released_;
}

}  // namespace ddprun
