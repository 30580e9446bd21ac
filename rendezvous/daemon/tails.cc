// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/daemon/tails.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <utility>

#include "common/text.h"

namespace ddprun::rendezvous {
namespace {

// `note` says which output is missing in `lines`, and why.
std::string tail_frame(const Tails::Rank& rank, const std::vector<std::string>& lines,
                       const std::string& note) {
  boost::json::array all(lines.begin(), lines.end());
  return boost::json::serialize(boost::json::object{{"type", "tail"},
                                                    {"run_id", rank.run_id},
                                                    {"rank", rank.global_rank},
                                                    {"lines", std::move(all)},
                                                    {"note", note}});
}

}  // namespace

void Tails::look(Watcher watcher, const Rank& rank, Clock::time_point now) {
  Looking& looking = watchers_[watcher];
  if (looking.rank == rank) return;
  look_away(watcher);
  looking.rank = rank;
  looking.version = 0;
  const auto [looked, is_new] = ranks_.try_emplace(rank);
  if (is_new) looked->second.due = std::max(now, looking.not_before);
}

void Tails::look_away(Watcher watcher) {
  const auto found = watchers_.find(watcher);
  if (found == watchers_.end() || !found->second.rank) return;
  const Rank rank = *std::exchange(found->second.rank, std::nullopt);
  const auto looks = [&](const auto& other) { return other.second.rank == rank; };
  if (std::ranges::none_of(watchers_, looks)) ranks_.erase(rank);
}

void Tails::gone(Watcher watcher) {
  look_away(watcher);
  watchers_.erase(watcher);
}

void Tails::clear() {
  watchers_.clear();
  ranks_.clear();
}

void Tails::said(membership::ConnectionId connection, const membership::Tail& tail) {
  for (auto& [rank, looked] : ranks_) {
    if (looked.asked_of != connection || looked.request != tail.request) continue;
    looked.asked_of.reset();
    looked.lines = tail.lines;
    return show(rank, looked, tail.note);
  }
}

void Tails::step(Clock::time_point now) {
  for (auto& [rank, looked] : ranks_) {
    if (looked.asked_of && now >= looked.asked_at + limits_.deadline) {
      looked.asked_of.reset();
      show(rank, looked,
           concat("its agent has not answered for ", limits_.deadline.count() / 1000.0, " s"));
    }
    if (!looked.asked_of && now >= looked.due) ask(rank, looked, now);
  }
}

void Tails::ask(const Rank& rank, Looked& looked, Clock::time_point now) {
  for (auto& [number, watcher] : watchers_) {
    if (watcher.rank == rank) watcher.not_before = now + limits_.pause;
  }
  looked.request = ++last_request_;
  looked.asked_at = now;
  looked.due = now + limits_.interval;
  const membership::TailRoute route = ask_(rank, looked.request);
  looked.asked_of = route.connection;
  if (!route.connection) show(rank, looked, route.why_not);
}

void Tails::show(const Rank& rank, Looked& looked, const std::string& note) {
  std::string frame = tail_frame(rank, looked.lines, note);
  if (frame == looked.frame) return;
  looked.frame = std::move(frame);
  ++looked.version;
}

std::optional<Clock::time_point> Tails::next_due() const {
  std::optional<Clock::time_point> next;
  for (const auto& [rank, looked] : ranks_) {
    keep_earlier(next, looked.asked_of ? looked.asked_at + limits_.deadline : looked.due);
  }
  return next;
}

const std::string* Tails::news(Watcher watcher) const {
  const auto found = watchers_.find(watcher);
  if (found == watchers_.end() || !found->second.rank) return nullptr;
  const Looked& looked = ranks_.at(*found->second.rank);
  return looked.version == found->second.version ? nullptr : &looked.frame;
}

void Tails::given(Watcher watcher) {
  Looking& looking = watchers_.at(watcher);
  looking.version = ranks_.at(looking.rank.value()).version;
}

}  // namespace ddprun::rendezvous
