// SPDX-License-Identifier: Apache-2.0
#include "ctl/top/looking.h"

#include <algorithm>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <cstddef>
#include <limits>
#include <optional>

#include "common/log.h"

namespace ddprun::top {
namespace {

constexpr std::size_t kMostDigits = 9;
constexpr std::size_t kMostName = 4'000;  // bytes of a job's name that the daemon takes
constexpr std::int64_t kMostRank = std::numeric_limits<std::int32_t>::max();

// The last rank that there is; where that isn't known: that there can be.
std::int64_t last_rank(const Job& job) {
  const bool is_known = !job.rounds.empty() && job.rounds.back().world_size > 0;
  return is_known ? job.rounds.back().world_size - 1 : kMostRank;
}

void look_at(View& view, const Job& job, std::int64_t rank) {
  view.looked_at = LookedAt{job.run_id, std::clamp<std::int64_t>(rank, 0, kMostRank)};
}

void step(View& view, const State& state, std::int64_t by) {
  const Job* job = live_job(state, view);
  if (job == nullptr || !view.has_output || !view.looked_at) return;
  look_at(view, *job, std::clamp<std::int64_t>(view.looked_at->rank + by, 0, last_rank(*job)));
}

void pick_typed(View& view, const State& state) {
  const std::int64_t rank = std::stoll(view.typed);
  view.typed.clear();
  const Job* job = live_job(state, view);
  if (job == nullptr) return;
  view.has_output = true;
  look_at(view, *job, rank);
}

}  // namespace

const Job* live_job(const State& state, const View& view) {
  const auto at = chosen(state, view);
  return at && *at < state.jobs.size() ? &state.jobs[*at] : nullptr;
}

void settle(View& view, const State& state) {
  const Job* job = live_job(state, view);
  if (!view.has_output || job == nullptr) return;
  if (!view.looked_at || view.looked_at->run_id != job->run_id) {
    look_at(view, *job, rank_of_interest(*job));
  }
}

bool press_output_key(View& view, Key key, const State& state) {
  const bool is_typing = !view.typed.empty();
  if (key >= Key::kDigit0 && key <= Key::kDigit9) {
    const int digit = static_cast<int>(key) - static_cast<int>(Key::kDigit0);
    if (view.typed.size() < kMostDigits) view.typed += static_cast<char>('0' + digit);
  } else if (is_typing && key == Key::kErase) {
    view.typed.pop_back();
  } else if (is_typing && key == Key::kEscape) {
    view.typed.clear();
  } else if (is_typing && key == Key::kEnter) {
    pick_typed(view, state);
  } else if (key == Key::kOutput) {
    view.has_output = !view.has_output;
    view.looked_at.reset();
    settle(view, state);
  } else if (key == Key::kRankBefore) {
    step(view, state, -1);
  } else if (key == Key::kRankAfter) {
    step(view, state, 1);
  } else {
    view.typed.clear();
    return key == Key::kErase;
  }
  return true;
}

std::string why_not_asked(const State& state, const LookedAt& rank) {
  if (!state.daemon.knows_tails) {
    return concat("the rendezvous is of an older version (", state.daemon.version,
                  "), which doesn't tell what ranks print");
  }
  return rank.run_id.size() > kMostName ? "the job's name is too long to ask for it" : "";
}

std::string tail_wish(const View& view, const State& state) {
  const Job* job = live_job(state, view);
  if (!view.has_output || !view.looked_at || job == nullptr ||
      job->run_id != view.looked_at->run_id || !why_not_asked(state, *view.looked_at).empty()) {
    return kLookAway;
  }
  const boost::json::object rank{{"run_id", view.looked_at->run_id},
                                 {"rank", view.looked_at->rank}};
  return boost::json::serialize(boost::json::object{{"tail", rank}});
}

}  // namespace ddprun::top
