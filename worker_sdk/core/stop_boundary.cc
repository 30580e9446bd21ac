// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/stop_boundary.h"

#include <algorithm>
#include <utility>

#include "common/error.h"
#include "common/log.h"
#include "rendezvous/store/store_timeout.h"

namespace ddprun {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kStoreTimeout{5'000};
constexpr int kMaxFailures = 2;

}  // namespace

StopBoundary::StopBoundary(const WorkerEnv& env,
                           std::function<std::unique_ptr<store::Store>()> connect,
                           const WorkerProgress& progress)
    : rank_(env.rank),
      connect_(std::move(connect)),
      progress_(progress),
      agreement_(env.round, env.world_size) {}

bool StopBoundary::reached(std::uint64_t step) {
  while (num_failures_ < kMaxFailures) {
    try {
      if (!store_) store_ = connect_();
      const auto until_stopped =
          std::chrono::ceil<milliseconds>(progress_.stop_deadline() - Clock::now());
      const store::StoreTimeout limit(*store_,
                                      std::clamp(until_stopped, milliseconds(1), kStoreTimeout));
      return agreement_.reached(*store_, step);
    } catch (const Error& error) {
      const bool was_connected = std::exchange(store_, nullptr) != nullptr;
      num_failures_ += was_connected ? 1 : kMaxFailures;
      log_warning("rank ", rank_, ": can't agree on a step to leave at: ", error.what());
    }
  }
  return false;
}

}  // namespace ddprun
