// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/membership/hang_watch.h"

#include <algorithm>
#include <utility>

namespace ddprun::membership {

bool HangWatch::wants_inquiry(TimePoint now) {
  if (open()) return false;
  if (now >= not_before_) return true;
  due_ = std::min(due_.value_or(not_before_), not_before_);
  return false;
}

void HangWatch::begin(TimePoint now) {
  ++number_;
  answers_.clear();
  missing_.clear();
  due_.reset();
  answer_deadline_ = now + kAnswerTime;
}

bool HangWatch::answered(NodeId node, std::uint64_t inquiry, std::vector<RankReport> ranks) {
  if (!open() || inquiry != number_ || missing_.erase(node) == 0) return false;
  answers_[node] = std::move(ranks);
  return missing_.empty();
}

void HangWatch::finished(std::optional<std::chrono::milliseconds> again_in, TimePoint now) {
  answers_.clear();
  missing_.clear();
  answer_deadline_.reset();
  not_before_ = now + kPause;
  if (again_in) due_ = now + *again_in;
}

HangWatch::Telling HangWatch::how_to_tell(HangKind kind, int global_rank, Clock::duration quiet,
                                          TimePoint now) {
  const bool is_same =
      told_ && told_->kind == kind && told_->global_rank == global_rank && now - quiet <= told_->at;
  if (is_same && quiet < 2 * told_->quiet) return Telling::kNothing;
  told_ = Told{kind, global_rank, quiet, now};
  return is_same ? Telling::kOneLine : Telling::kInFull;
}

void HangWatch::reset() {
  const std::uint64_t number = number_;
  *this = HangWatch();
  number_ = number;
}

}  // namespace ddprun::membership
