// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/membership/endpoint_turns.h"

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "common/log.h"

namespace ddprun::membership {

using std::chrono::milliseconds;

EndpointTurns::EndpointTurns(std::vector<Endpoint> endpoints)
    : endpoints_(std::move(endpoints)), failures_(endpoints_.size()) {
  DDPRUN_CHECK(!endpoints_.empty());
}

void EndpointTurns::begin(std::size_t first) {
  DDPRUN_CHECK(first < endpoints_.size());
  current_ = first;
  num_failed_ = 0;
  num_turns_ = 0;
  std::fill(failures_.begin(), failures_.end(), "");
}

milliseconds EndpointTurns::attempt_limit() const {
  if (is_alone()) return kLongestAttempt;
  constexpr int kMostDoublings = 8;
  return std::min(kFirstAttempt * (1 << std::min(num_turns_, kMostDoublings)), kLongestAttempt);
}

bool EndpointTurns::failed(const ConnectFailure& failure) {
  failures_[current_] = described(failure);
  current_ = (current_ + 1) % endpoints_.size();
  if (++num_failed_ < endpoints_.size()) return false;
  num_failed_ = 0;
  ++num_turns_;
  return true;
}

std::string EndpointTurns::described(const ConnectFailure& failure) const {
  switch (failure.kind) {
    case ConnectFailure::Kind::kAway:
      break;
    case ConnectFailure::Kind::kStandby:
      if (is_alone()) {
        return concat("it is a standby, and no leader was found",
                      failure.what.empty() ? "" : "; it takes " + failure.what + " for the leader");
      }
      return failure.what.empty() ? "it is a standby" : "it is a standby of " + failure.what;
    case ConnectFailure::Kind::kNoRendezvous:
      return concat("what listens there is not a ddprun rendezvous (", failure.what, ")");
    case ConnectFailure::Kind::kUntrusted:
      return concat(is_alone() ? "the rendezvous at " + to_string(endpoints_[current_]) : "it", " ",
                    failure.what);
  }
  return failure.what;
}

std::string EndpointTurns::names() const {
  std::string text;
  for (std::size_t i = 0; i < endpoints_.size(); ++i) {
    const bool is_last = i + 1 == endpoints_.size();
    text += (i == 0 ? "" : is_last ? " or " : ", ") + to_string(endpoints_[i]);
  }
  return text;
}

std::string EndpointTurns::failures() const {
  const auto is_tried = [](const std::string& failure) { return !failure.empty(); };
  if (std::none_of(failures_.begin(), failures_.end(), is_tried)) {
    return "there was no time for an attempt";
  }
  if (is_alone()) return failures_.front();
  std::string text;
  for (std::size_t i = 0; i < endpoints_.size(); ++i) {
    text += concat(text.empty() ? "" : "; ", to_string(endpoints_[i]), ": ",
                   failures_[i].empty() ? "not tried" : failures_[i]);
  }
  return text;
}

}  // namespace ddprun::membership
