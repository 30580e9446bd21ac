// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/stop_agreement.h"

#include <charconv>

#include "common/error.h"

namespace ddprun {
namespace {

std::uint64_t parse_step(const std::string& text) {
  std::uint64_t step = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, step);
  if (error == std::errc() && stop == end) return step;
  throw Error(ErrorCode::kProtocol, "the step boundary in the store is no number");
}

}  // namespace

StopAgreement::StopAgreement(int round, int world_size)
    : posted_key_("ddprun/" + std::to_string(round) + "/stop/posted"),
      boundary_key_("ddprun/" + std::to_string(round) + "/stop/boundary"),
      world_size_(world_size) {}

bool StopAgreement::reached(store::Store& store, std::uint64_t step) {
  if (!posted_) {
    posted_ = true;  // whether it arrives or not: never twice
    // The last one knows that all look from now on, and that none has begun a later step than this.
    if (store.add(posted_key_, 1) == world_size_) {
      // Not set(), which has no reply: it is there before this rank takes part in the step.
      store.add(boundary_key_, static_cast<std::int64_t>(step + 1));
      boundary_ = step + 1;
    }
  } else if (!boundary_ && store.check({boundary_key_})) {
    boundary_ = parse_step(store.get(boundary_key_));
  }
  return boundary_ && step >= *boundary_;
}

}  // namespace ddprun
