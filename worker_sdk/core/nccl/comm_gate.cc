// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/nccl/comm_gate.h"

#include <utility>

namespace ddprun::nccl {

CommGate::Pass::Pass(CommGate& gate) : gate_(gate) {
  std::lock_guard lock(gate_.mutex_);
  comm_ = gate_.comm_;
  ++gate_.num_inside_;
}

CommGate::Pass::~Pass() {
  std::lock_guard lock(gate_.mutex_);
  if (--gate_.num_inside_ == 0) gate_.left_.notify_all();
}

Comm CommGate::take(Deadline deadline) {
  std::unique_lock lock(mutex_);
  Comm taken = std::exchange(comm_, nullptr);
  left_.wait_until(lock, deadline.at(), [this] { return num_inside_ == 0; });
  return taken;
}

bool CommGate::empties_before(Deadline deadline) {
  std::unique_lock lock(mutex_);
  return left_.wait_until(lock, deadline.at(), [this] { return num_inside_ == 0; });
}

void CommGate::begin_split(std::shared_ptr<Comm> child) {
  std::lock_guard lock(mutex_);
  child_ = std::move(child);
}

bool CommGate::end_split() {
  std::lock_guard lock(mutex_);
  return std::exchange(child_, nullptr) != nullptr;
}

std::shared_ptr<Comm> CommGate::take_child() {
  std::lock_guard lock(mutex_);
  return std::exchange(child_, nullptr);
}

}  // namespace ddprun::nccl
