// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/nccl/comm_gate.h"

#include <utility>

namespace ddprun::nccl {

CommGate::Pass::Pass(CommGate& gate, IfBusy if_busy) : gate_(gate) {
  std::unique_lock lock(gate_.mutex_);
  if (if_busy == IfBusy::kWait) {
    gate_.changed_.wait(lock, [&] { return !gate_.is_inside_ || gate_.comm_ == nullptr; });
  }
  if (gate_.is_inside_ || gate_.comm_ == nullptr) return;
  comm_ = gate_.comm_;
  gate_.is_inside_ = true;
}

CommGate::Pass::~Pass() {
  if (comm_ == nullptr) return;
  std::lock_guard lock(gate_.mutex_);
  gate_.is_inside_ = false;
  gate_.changed_.notify_all();
}

Comm CommGate::take(Deadline deadline) {
  std::unique_lock lock(mutex_);
  Comm taken = std::exchange(comm_, nullptr);
  changed_.notify_all();
  const bool is_empty = changed_.wait_until(lock, deadline.at(), [this] { return !is_inside_; });
  return is_empty ? taken : nullptr;
}

}  // namespace ddprun::nccl
