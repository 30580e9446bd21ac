// SPDX-License-Identifier: Apache-2.0
#include "ctl/top/follower.h"

#include <algorithm>
#include <utility>

#include "common/clock.h"
#include "common/log.h"

namespace ddprun::top {

using membership::ConnectFailure;
using membership::FrameStream;
using membership::LinkConnector;

namespace {

constexpr char kWatchPath[] = "/v1/watch";
constexpr std::chrono::seconds kSilence{15};  // the daemon says something every 5 s
constexpr std::chrono::milliseconds kFirstWait{500}, kLongestWait{15'000};

}  // namespace

Follower::Follower(boost::asio::io_context& io, const std::vector<Endpoint>& endpoints,
                   const membership::LinkSecurity& security, Handlers handlers)
    : handlers_(std::move(handlers)), turns_(endpoints), timer_(io), wait_(kFirstWait) {
  for (const Endpoint& endpoint : endpoints) {
    connectors_.push_back(std::make_unique<LinkConnector>(io, endpoint, security, kWatchPath,
                                                          LinkConnector::Door::kRequest));
  }
}

Follower::~Follower() {
  if (frames_) frames_->close();
}

void Follower::start() {
  turns_.begin(turns_.current());
  attempt();
}

void Follower::attempt() {
  connectors_[turns_.current()]->attempt(
      Clock::now() + turns_.attempt_limit(),
      {.opened = [this](const std::shared_ptr<FrameStream>& frames) { opened(frames); },
       .failed = [this](const ConnectFailure& failure) { failed(failure); }});
}

void Follower::failed(const ConnectFailure& failure) {
  using Kind = ConnectFailure::Kind;
  if (!was_there_ && (failure.kind == Kind::kUntrusted || failure.kind == Kind::kNoRendezvous)) {
    const std::string who = to_string(connectors_[turns_.current()]->endpoint());
    const bool is_trust = failure.kind == Kind::kUntrusted;
    return handlers_.refused(
        is_trust ? Error(ErrorCode::kInvalidArgument,
                         concat("the rendezvous at ", who, " ", failure.what))
                 : Error(ErrorCode::kProtocol,
                         concat("what listens at ", who,
                                " is no ddprun rendezvous, or an older one: ", failure.what)));
  }
  if (!turns_.failed(failure)) return attempt();
  lost(turns_.failures());
}

void Follower::opened(const std::shared_ptr<FrameStream>& frames) {
  was_there_ = true;
  frames_ = frames;
  FrameStream::Handlers handlers;
  handlers.frame = [this](std::string_view frame) {
    wait_ = kFirstWait;
    listen_for_silence();
    handlers_.said(frame);
  };
  handlers.ended = [this](const std::string& reason) { lost(reason); };
  frames_->start(std::move(handlers));
  listen_for_silence();
}

void Follower::listen_for_silence() {
  timer_.expires_after(kSilence);
  timer_.async_wait([this](boost::system::error_code error) {
    if (error) return;
    lost(concat("nothing was heard for ", kSilence.count(), " s"));
  });
}

bool Follower::say(const std::string& text) {
  if (!frames_ || !frames_->has_sent_all()) return false;
  frames_->send(text);
  return true;
}

void Follower::give_up(const std::string& why) {
  if (connectors_.size() == 1) wait_ = kLongestWait / 3;
  lost(why);
}

void Follower::lost(const std::string& why) {
  if (const auto frames = std::exchange(frames_, nullptr)) frames->close();
  timer_.expires_after(wait_);
  timer_.async_wait([this](boost::system::error_code error) {
    if (!error) start();
  });
  wait_ = std::min(wait_ * 2, kLongestWait);
  handlers_.lost(why);
}

}  // namespace ddprun::top
