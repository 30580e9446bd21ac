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

StopAgreement::StopAgreement(store::Store& store, int round, int world_size)
    : store_(store),
      posted_key_("ddprun/" + std::to_string(round) + "/stop/posted"),
      boundary_key_("ddprun/" + std::to_string(round) + "/stop/boundary"),
      world_size_(world_size) {}

bool StopAgreement::reached(std::uint64_t step) {
  if (!posted_) {
    posted_ = true;
    // The last one knows that all look from now on, and that none has begun a later step than this.
    if (store_.add(posted_key_, 1) == world_size_) {
      boundary_ = step + 1;
      // Not set(), which has no reply: it is there before this rank takes part in the step.
      store_.add(boundary_key_, static_cast<std::int64_t>(*boundary_));
    }
  } else if (!boundary_ && store_.check({boundary_key_})) {
    boundary_ = parse_step(store_.get(boundary_key_));
  }
  return boundary_ && step >= *boundary_;
}

}  // namespace ddprun
