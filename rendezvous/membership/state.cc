// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/membership/state.h"

#include <algorithm>

#include "common/text.h"
#include "common/wall_time.h"
#include "rendezvous/membership/verdicts.h"

namespace ddprun::membership {

using std::chrono::duration_cast;
using std::chrono::microseconds;

namespace {

// The phases' names, in the order of the enumerators.
constexpr std::array kNodePhases = {"idle", "starting", "running", "succeeded", "stopping"};
constexpr std::array kJobPhases = {"forming", "running", "stopping", "ended"};

}  // namespace

const char* to_string(NodePhase phase) { return kNodePhases.at(static_cast<std::size_t>(phase)); }

std::string node_key(const Join& join, const ConnectionFacts& facts) {
  const std::string& addr = join.advertised_addr.empty() ? facts.peer_addr : join.advertised_addr;
  return join.host.empty() ? addr : concat(join.host, " (", addr, ")");
}

std::string describe(const Node& node) {
  const std::string& addr =
      node.join.advertised_addr.empty() ? node.facts.peer_addr : node.join.advertised_addr;
  const std::string host = node.join.host.empty() ? addr : node.join.host;
  if (!node.node_rank) return concat(host, " (", addr, ")");
  return concat("node ", *node.node_rank, " (", host, ", ", addr, ")");
}

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

void log(Actions& out, const JobState& job, LogLevel level, const std::string& text,
         bool is_about_stranger) {
  out.push_back(action::Log{level, concat("job ", job.run_id, ": ", text), is_about_stranger});
}

const char* to_string(JobPhase phase) { return kJobPhases.at(static_cast<std::size_t>(phase)); }

}  // namespace ddprun::membership
