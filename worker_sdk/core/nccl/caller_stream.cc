// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/nccl/caller_stream.h"

#include <utility>

namespace ddprun::nccl {

CallerStream::CallerStream(CurrentStream current) : current_(std::move(current)) {}

void CallerStream::follow(const CurrentStream& current) {
  const std::lock_guard lock(mutex_);
  if (!current_) current_ = current;
}

CurrentStream CallerStream::current() const {
  const std::lock_guard lock(mutex_);
  return current_;
}

Stream CallerStream::on(int device) const {
  const CurrentStream stream = current();
  return stream ? static_cast<Stream>(stream(device)) : nullptr;
}

}  // namespace ddprun::nccl
