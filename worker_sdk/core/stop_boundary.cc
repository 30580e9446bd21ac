// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/stop_boundary.h"

#include <algorithm>
#include <utility>

#include "common/error.h"
#include "common/log.h"
#include "common/parsed_number.h"
#include "rendezvous/store/store_timeout.h"

namespace ddprun {
namespace {

std::uint64_t parse_step(const std::string& text) {
  if (const auto step = parsed_number<std::uint64_t>(text)) return *step;
  throw Error(ErrorCode::kProtocol, "the step boundary in the store is no number");
}

using std::chrono::milliseconds;

constexpr milliseconds kStoreTimeout{5'000};
constexpr int kMaxFailures = 2;

}  // namespace

bool StopAgreement::reached(store::Store& store, std::uint64_t step) {
  if (!posted_) {
    posted_ = true;  // set before the request, so that it is never sent twice
    // The last rank knows that all check the boundary from now on, and that none has begun a later
    // step.
    if (store.add(posted_key_, 1) == world_size_) {
      // add() waits for a reply, set() doesn't. So the boundary is stored before this rank takes
      // part in the step.
      store.add(boundary_key_, static_cast<std::int64_t>(step + 1));
      boundary_ = step + 1;
    }
  } else if (!boundary_ && store.check({boundary_key_})) {
    boundary_ = parse_step(store.get(boundary_key_));
  }
  return boundary_ && step >= *boundary_;
}

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
