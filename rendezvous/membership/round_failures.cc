// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/membership/round_failures.h"

#include <algorithm>

#include "common/duration.h"
#include "common/log.h"
#include "rendezvous/membership/verdicts.h"

namespace ddprun::membership {
namespace {

using std::chrono::duration_cast;
using std::chrono::microseconds;

}  // namespace

void RoundFailures::begin(Clock::time_point now) {
  entries_.clear();
  num_dropped_ = 0;
  round_began_ = now;
  ++version_;
}

bool RoundFailures::add(const Node& node, const WorkerFailure& failure, Clock::time_point now) {
  Entry entry{node.id, node.key, failure, now, {}};
  if (failure.died_at_us > 0) {
    const Clock::time_point said{duration_cast<Clock::duration>(microseconds(failure.died_at_us))};
    entry.at = std::clamp(said, std::min(round_began_, now), now);
    entry.error = microseconds(failure.clock_error_us);
  } else {
    entry.error = duration_cast<microseconds>(now - std::min(round_began_, now));
  }
  const auto place =
      std::upper_bound(entries_.begin(), entries_.end(), entry,
                       [](const Entry& one, const Entry& other) { return one.at < other.at; });
  ++version_;
  const bool is_first = place == entries_.begin();
  entries_.insert(place, std::move(entry));
  if (entries_.size() > kMaxVictims + 1) {
    entries_.pop_back();
    ++num_dropped_;
  }
  return is_first;
}

std::vector<std::string> RoundFailures::victims() const {
  std::vector<std::string> lines;
  for (std::size_t i = 1; i < entries_.size(); ++i) {
    const Entry& entry = entries_[i];
    lines.push_back(concat(describe(entry.failure), " ",
                           milliseconds_text(duration_cast<microseconds>(entry.at - first().at)),
                           " later (± ", milliseconds_text(entry.error + first().error), ")"));
  }
  if (num_dropped_ > 0) lines.push_back(concat("and ", num_dropped_, " more"));
  return lines;
}

}  // namespace ddprun::membership
