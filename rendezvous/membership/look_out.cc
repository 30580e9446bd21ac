// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/membership/look_out.h"

#include <algorithm>
#include <concepts>
#include <utility>

namespace ddprun::membership {

// `handler`, to be dropped when the generation has moved on, or this object is gone.
template <typename Handler>
auto LookOut::guard(Handler handler) {
  return [
    weak = weak_from_this(), generation = generation_, handler = std::move(handler)
  ]<typename... Args>(Args && ... args) mutable requires std::invocable<Handler&, Args...> {
    const auto self = weak.lock();
    if (self && self->generation_ == generation) handler(std::forward<Args>(args)...);
  };
}

LookOut::LookOut(boost::asio::io_context& io, LinkConnectors& connectors,
                 const KeepAlive& keep_alive)
    : connectors_(connectors), keep_alive_(keep_alive), quiet_timer_(io) {
  for (std::size_t i = 0; i < connectors.size(); ++i) pauses_.emplace_back(io);
  lengths_.resize(connectors.size());
}

void LookOut::watch(std::size_t open_at, Found found) {
  stop();
  open_at_ = open_at;
  found_ = std::move(found);
  if (connectors_.size() > 1) wait_for_quiet();
}

void LookOut::answered() {
  if (!looking_) return;  // quiet_timer_ sees by itself
  give_up_attempts();
  wait_for_quiet();
}

void LookOut::stop() {
  give_up_attempts();
  quiet_timer_.cancel();
  found_ = nullptr;
}

void LookOut::give_up_attempts() {
  ++generation_;
  if (!std::exchange(looking_, false)) return;
  for (std::size_t i = 0; i < connectors_.size(); ++i) {
    pauses_[i].cancel();
    if (i != open_at_) connectors_[i]->cancel();
  }
}

void LookOut::wait_for_quiet() {
  quiet_timer_.expires_at(keep_alive_.quiet_at());
  quiet_timer_.async_wait(guard([this](boost::system::error_code error) {
    if (error) return;
    Clock::now() < keep_alive_.quiet_at() ? wait_for_quiet() : look();
  }));
}

void LookOut::look() {
  looking_ = true;
  std::fill(lengths_.begin(), lengths_.end(), kFirstPause);
  for (std::size_t i = 0; i < connectors_.size(); ++i) {
    if (i != open_at_) attempt(i);
  }
}

void LookOut::attempt(std::size_t index) {
  const Clock::time_point now = Clock::now();
  if (keep_alive_.is_silent(now)) return;  // the owner ends it all
  LinkConnector::Handlers handlers;
  handlers.opened = guard([this, index](std::shared_ptr<FrameStream> stream) {
    const auto found = std::move(found_);
    stop();
    found(index, std::move(stream));
  });
  handlers.failed = guard([this, index](const ConnectFailure&) { attempt_later(index); });
  connectors_[index]->attempt(std::min(keep_alive_.silent_at(), now + kLongestAttempt),
                              std::move(handlers));
}

void LookOut::attempt_later(std::size_t index) {
  auto& pause = pauses_[index];
  pause.expires_after(std::exchange(lengths_[index], std::min(lengths_[index] * 2, kLastPause)));
  pause.async_wait(guard([this, index](boost::system::error_code error) {
    if (!error) attempt(index);
  }));
}

}  // namespace ddprun::membership
