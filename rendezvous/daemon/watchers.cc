// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/daemon/watchers.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <utility>

#include "common/error.h"
#include "common/text.h"
#include "rendezvous/asio/waits.h"
#include "rendezvous/messages/json_fields.h"

namespace ddprun::rendezvous {

using membership::FrameStream;

namespace {

constexpr std::size_t kMostSaid = 32 << 10;  // bytes of a page's message, which has a job's name
constexpr std::chrono::milliseconds kGoodbyeLimit{1'000};
constexpr std::size_t kBytesPerTurn = 4 << 20;  // to watchers; then others are served
constexpr int kShare = 20;                      // states take at most 1/20 of the I/O thread's time

std::string end_frame(const std::string& why) {
  return boost::json::serialize(boost::json::object{{"type", "end"}, {"why", why}});
}

}  // namespace

Watchers::Watchers(boost::asio::io_context& io, const WatcherLimits& limits, Source source)
    : limits_(limits),
      source_(std::move(source)),
      timer_(io),
      tails_(limits.tails, source_.tail),
      tail_timer_(io) {}

void Watchers::take(const std::shared_ptr<FrameStream>& frames) {
  if (stopped_) return frames->close();
  if (watchers_.size() >= limits_.num) {
    frames->send(end_frame(concat(watchers_.size(), " pages watch already: close one of them")));
    return frames->close_when_sent(kGoodbyeLimit);
  }
  const std::uint64_t number = next_number_++;
  FrameStream::Handlers handlers;
  handlers.frame = [this, number](std::string_view text) { heard(number, text); };
  handlers.pong = [this, number](std::string_view) {
    const auto found = watchers_.find(number);
    if (found != watchers_.end()) found->second.heard_at = Clock::now();
  };
  handlers.ended = [this, number](const std::string&) { forget(number); };
  const auto now = Clock::now();
  watchers_[number] = {frames, 0, {}, now, now};
  frames->limit_messages(kMostSaid);
  frames->start(std::move(handlers));
  if (!state_.empty()) tell_all();
  arm();
}

void Watchers::forget(std::uint64_t number) {
  watchers_.erase(number);
  tails_.gone(number);
}

void Watchers::heard(std::uint64_t number, std::string_view text) {
  const auto found = watchers_.find(number);
  if (found == watchers_.end()) return;
  try {
    const auto rank = read_page_message(text);
    if (rank) {
      tails_.look(number, *rank, Clock::now());
    } else {
      tails_.look_away(number);
    }
  } catch (const Error& error) {
    end(found->second, error.what());
    return forget(number);
  }
  tell_tails();  // another page may already look at it
  arm_tails();
}

void Watchers::said(membership::ConnectionId connection, const membership::Tail& tail) {
  tails_.said(connection, tail);
  tell_tails();
  arm_tails();
}

// Sends new output to pages. A slow reader gets the newest later, with the next state.
void Watchers::tell_tails() {
  for (auto& [number, watcher] : watchers_) {
    const std::string* news = tails_.news(number);
    if (news == nullptr || !watcher.frames->has_sent_all()) continue;
    watcher.frames->send(*news);
    tails_.given(number);
  }
}

void Watchers::arm_tails() {
  const auto due = tails_.next_due();
  if (!due || stopped_) {
    tail_timer_.cancel();
    return;
  }
  // replaces a wait for another time
  run_at(tail_timer_, *due, [self = shared_from_this()] {
    if (self->stopped_) return;
    self->tails_.step(Clock::now());
    self->tell_tails();
    self->arm_tails();
  });
}

void Watchers::end(Watcher& watcher, const std::string& why) {
  watcher.frames->send(end_frame(why));
  watcher.frames->close_when_sent(kGoodbyeLimit);
}

void Watchers::end_all(const std::string& why) {
  ++era_;
  making_ = false;
  state_.clear();
  seen_.clear();
  tails_.clear();
  arm_tails();
  for (auto& [number, watcher] : std::exchange(watchers_, {})) end(watcher, why);
}

void Watchers::stop() {
  stopped_ = true;
  ++era_;
  timer_.cancel();
  tails_.clear();
  tail_timer_.cancel();
  for (const auto& [number, watcher] : std::exchange(watchers_, {})) watcher.frames->close();
}

void Watchers::arm() {
  if (std::exchange(timing_, true)) return;
  timer_.expires_at(std::max(Clock::now(), next_look_));
  timer_.async_wait([self = shared_from_this()](boost::system::error_code error) {
    self->timing_ = false;
    if (!error && !self->stopped_) self->look();
  });
}

void Watchers::look() {
  if (watchers_.empty()) {  // until a page comes
    state_.clear();
    seen_.clear();
    return;
  }
  const auto now = Clock::now();
  for (auto each = watchers_.begin(); each != watchers_.end();) {
    Watcher& watcher = each->second;
    if (now - watcher.heard_at > limits_.silence) {
      watcher.frames->close();
      tails_.gone(each->first);
      each = watchers_.erase(each);
      continue;
    }
    if (now - watcher.pinged_at >= limits_.ping_interval) {
      watcher.pinged_at = now;
      watcher.frames->ping("");
    }
    ++each;
  }
  make_state();
  tell_all();
  tell_tails();
  next_look_ = now + limits_.interval;
  arm();
}

void Watchers::make_state() {
  if (watchers_.empty() || Clock::now() < next_state_ || std::exchange(making_, true)) return;
  source_.jobs([weak = weak_from_this(), era = era_](const WatchedJobs& jobs) {
    const auto self = weak.lock();
    if (self && self->era_ == era) self->made(jobs);
  });
}

void Watchers::made(const WatchedJobs& jobs) {
  making_ = false;
  next_state_ = Clock::now() + kShare * jobs.cost;
  if (watchers_.empty()) return;
  const Status status = source_.status();
  // The state is replaced even if only ages have changed: a new page gets the present ages.
  state_ = concat("{\"type\":\"state\",\"status\":", status.json, ",", jobs.json, "}");
  if (state_.size() > limits_.state_bytes) {
    state_ = concat("{\"type\":\"too_large\",\"bytes\":", state_.size(), "}");
  }
  std::string seen = concat(status.key, '\n', jobs.key);
  if (seen == seen_) return;
  seen_ = std::move(seen);
  ++version_;
  tell_all();
}

void Watchers::tell_all() {
  const auto now = Clock::now();
  std::string status;
  std::size_t bytes = 0;
  for (auto& [number, watcher] : watchers_) {
    if (!watcher.frames->has_sent_all()) continue;  // it gets a newer one later
    if (!state_.empty() && watcher.version != version_) {
      if (bytes > kBytesPerTurn) {
        tell_others_soon();
        break;
      }
      bytes += state_.size();
      watcher.version = version_;
      watcher.frames->send(state_);
    } else if (now - watcher.said_at >= limits_.status_after) {
      if (status.empty()) {
        status = concat("{\"type\":\"status\",\"status\":", source_.status().json, "}");
      }
      watcher.frames->send(status);
    } else {
      continue;
    }
    watcher.said_at = now;
  }
  next_state_ = std::max(next_state_, now) + kShare * (Clock::now() - now);
}

void Watchers::tell_others_soon() {
  if (std::exchange(telling_, true)) return;
  boost::asio::post(timer_.get_executor(), [self = shared_from_this()] {
    self->telling_ = false;
    if (!self->stopped_) self->tell_all();
  });
}

std::string watch_key(const DaemonStatus& status) {
  std::string key =
      concat(status.agents.number, ' ', status.live_jobs.number, ' ', status.finished_jobs.number);
  if (status.role) key += concat(" role ", status.role->leads, ' ', status.role->leader);
  return key;
}

std::optional<Tails::Rank> read_page_message(std::string_view text) {
  constexpr std::size_t kMaxDepth = 4;
  const auto said = parse_object(text, kMaxDepth);
  if (!said || !said->contains("tail")) {
    throw Error(ErrorCode::kProtocol, "a page says nothing here but whose output it looks at");
  }
  const membership::JsonFields in(*said, "a page");
  if (!in.has("tail")) return std::nullopt;
  const membership::JsonFields tail = in.object("tail");
  return Tails::Rank{tail.text("run_id"), tail.small("rank", 0, membership::kMaxInt)};
}

}  // namespace ddprun::rendezvous
