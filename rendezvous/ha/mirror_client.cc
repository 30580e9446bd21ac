// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/ha/mirror_client.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "common/clock.h"
#include "common/error.h"
#include "common/log.h"
#include "rendezvous/ha/mirror_codec.h"
#include "rendezvous/membership/frame_stream.h"
#include "rendezvous/membership/link_connector.h"

namespace ddprun::ha {

namespace asio = boost::asio;
using membership::ConnectFailure;
using membership::FrameStream;
using membership::LinkConnector;
using std::chrono::milliseconds;
using Kind = MirrorTrouble::Kind;

class MirrorClient::Impl : public std::enable_shared_from_this<Impl> {
 public:
  using Session = MirrorKeeper::Session;

  Impl(asio::io_context& io, MirrorClientOptions options, Handlers handlers)
      : io_(io),
        options_(std::move(options)),
        handlers_(std::move(handlers)),
        connector_(io, options_.leader, options_.security, kMirrorPath),
        timer_(io),
        watch_timer_(io) {}

  void start(std::unique_ptr<journal::JournalFile> file) {
    const auto weak = weak_from_this();
    MirrorKeeper::Events events;
    events.got = [weak](Session session, std::uint64_t bytes) {
      const auto self = weak.lock();
      if (self && self->is_current(session)) self->say(mirror::Got{bytes});
    };
    events.acked = [weak](Session session, std::uint64_t number) {
      const auto self = weak.lock();
      if (self && self->is_current(session)) self->say(mirror::Ack{number});
    };
    events.synced = [weak](Session session, const SyncedWith& synced) {
      const auto self = weak.lock();
      if (self && self->is_current(session)) self->synced(synced);
    };
    events.failed = [weak](Session session, const std::string& why, bool is_own) {
      const auto self = weak.lock();
      if (self && self->is_current(session)) self->keeper_failed(why, is_own);
    };
    keeper_ = std::make_unique<MirrorKeeper>(
        std::move(file),
        [&io = io_](std::function<void()> call) { asio::post(io, std::move(call)); },
        std::move(events));
    try_again({});
  }

  void stop(std::function<void(MirroredJournal)> done) {
    close();
    keeper_->stop([weak = weak_from_this(), done = std::move(done)](MirroredJournal kept) {
      const auto self = weak.lock();
      if (self && !self->is_destroyed_) done(std::move(kept));
    });
  }

  void destroy() {
    is_destroyed_ = true;
    close();
    keeper_.reset();
  }

  bool is_in_sync() const { return is_in_sync_; }

 private:
  bool is_current(Session session) const { return frames_ && session == session_; }

  void say(const mirror::StandbyMessage& message) { frames_->send(mirror::encode(message)); }

  // No call follows.
  void close() {
    handlers_ = {};
    is_closed_ = true;
    ++session_;
    connector_.cancel();
    timer_.cancel();
    watch_timer_.cancel();
    if (frames_) frames_->close();
    frames_.reset();
    is_in_sync_ = false;
  }

  // ---- connecting ----

  void try_again(milliseconds pause) {
    if (is_closed_) return;
    timer_.expires_after(pause);
    timer_.async_wait([weak = weak_from_this()](boost::system::error_code error) {
      const auto self = weak.lock();
      if (!error && self && !self->is_closed_) self->attempt();
    });
  }

  void try_later() {
    pause_ = std::clamp(pause_ * 2, options_.first_pause, options_.last_pause);
    try_again(pause_);
  }

  void attempt() {
    LinkConnector::Handlers handlers;
    const auto weak = weak_from_this();
    handlers.opened = [weak](std::shared_ptr<FrameStream> stream) {
      if (const auto self = weak.lock()) self->opened(std::move(stream));
    };
    handlers.failed = [weak](const ConnectFailure& failure) {
      if (const auto self = weak.lock()) self->failed(failure);
    };
    connector_.attempt(Clock::now() + options_.attempt_limit, std::move(handlers));
  }

  void failed(const ConnectFailure& failure) {
    try_later();
    switch (failure.kind) {
      case ConnectFailure::Kind::kAway:
        return tell({Kind::kAway, failure.what});
      case ConnectFailure::Kind::kStandby:
        return tell({Kind::kStandsBy, failure.what});
      case ConnectFailure::Kind::kNoRendezvous:
        return tell({Kind::kRefused, concat("keeps no journal that can be mirrored, or is no "
                                            "ddprund of this version: ",
                                            failure.what)});
      case ConnectFailure::Kind::kUntrusted:
        return tell({Kind::kRefused, failure.what});
    }
  }

  void tell(const MirrorTrouble& trouble) {
    const bool is_known = told_ && told_->kind == trouble.kind && told_->what == trouble.what;
    told_ = trouble;
    const auto handler = handlers_.trouble;  // a copy: it may stop this
    if (handler && !is_known) handler(trouble);
  }

  // ---- connected ----

  void opened(std::shared_ptr<FrameStream> stream) {
    frames_ = std::move(stream);
    const Session session = ++session_;
    is_welcome_ = false;
    last_heard_ = Clock::now();
    frames_->limit_messages(kPartHeaderBytes + kMaxPartBytes);
    const auto weak = weak_from_this();
    const auto current = [weak, session]() -> std::shared_ptr<Impl> {
      const auto self = weak.lock();
      return self && self->is_current(session) ? self : nullptr;
    };
    FrameStream::Handlers handlers;
    handlers.frame = [current](std::string_view text) {
      if (const auto self = current()) self->received(text);
    };
    handlers.binary = [current](std::string_view bytes) {
      if (const auto self = current()) self->received_part(bytes);
    };
    handlers.pong = [current](std::string_view) {
      if (const auto self = current()) self->last_heard_ = Clock::now();
    };
    handlers.ended = [current](const std::string& why) {
      if (const auto self = current()) self->lose(why, false);
    };
    frames_->start(std::move(handlers));
    mirror::Hello hello;
    hello.name = options_.name;
    say(hello);
    watch(session);
  }

  void watch(Session session) {
    const Clock::time_point silent_at = last_heard_ + options_.lease;
    if (Clock::now() >= silent_at) {
      return lose(concat("nothing was heard of it for ", options_.lease.count(), " ms"), true);
    }
    frames_->ping("");
    watch_timer_.expires_at(std::min(Clock::now() + options_.ping_every, silent_at));
    watch_timer_.async_wait([weak = weak_from_this(), session](boost::system::error_code error) {
      const auto self = weak.lock();
      if (!error && self && self->is_current(session)) self->watch(session);
    });
  }

  void received(std::string_view text) {
    last_heard_ = Clock::now();
    try {
      const auto message = mirror::decode_leader_message(text);
      if (const auto* refused = std::get_if<mirror::Refused>(&message)) {
        return refuse(concat("takes this standby not in: ", one_line(refused->reason)));
      }
      if (const auto* welcome = std::get_if<mirror::Welcome>(&message)) return greet(*welcome);
      if (!is_welcome_) throw Error(ErrorCode::kProtocol, "its first message is no welcome");
      keeper_->sync(session_, {std::get<mirror::InSync>(message).term, leader_});
    } catch (const Error& error) {
      lose(error.what(), false);
    }
  }

  void greet(const mirror::Welcome& welcome) {
    if (is_welcome_) throw Error(ErrorCode::kProtocol, "it says welcome again");
    if (welcome.version != kMirrorVersion) {
      return refuse(concat("speaks version ", welcome.version,
                           " of the mirror's protocol, and this standby version ", kMirrorVersion));
    }
    is_welcome_ = true;
    leader_ = one_line(welcome.name);
    told_.reset();
    keeper_->begin(session_, welcome.boot);
    const auto handler = handlers_.copying;
    if (handler) handler(leader_);
  }

  void received_part(std::string_view bytes) {
    last_heard_ = Clock::now();
    if (!is_welcome_) return lose("it sends rows before its welcome", false);
    keeper_->part(session_, std::string(bytes));
  }

  void synced(const SyncedWith& synced) {
    is_in_sync_ = true;
    pause_ = {};
    retry_ = {};
    const auto handler = handlers_.in_sync;
    if (handler) handler(synced);
  }

  // ---- the end of a connection ----

  struct End {
    bool was_welcome = false;
    LostLeader lost;
  };

  End end(const std::string& why) {
    End end;
    end.was_welcome = std::exchange(is_welcome_, false);
    end.lost.why = why;
    end.lost.was_in_sync = std::exchange(is_in_sync_, false);
    frames_->close();
    frames_.reset();
    watch_timer_.cancel();
    if (end.was_welcome) keeper_->end();
    return end;
  }

  void lose(const std::string& why, bool is_silence) {
    End ended = end(why);
    ended.lost.is_silence = is_silence;
    try_later();
    if (!ended.was_welcome) return tell({Kind::kAway, why});
    const auto handler = handlers_.lost;
    if (handler) handler(ended.lost);
  }

  void refuse(const std::string& why) {
    end(why);
    pause_ = options_.last_pause;
    try_later();
    tell({Kind::kRefused, why});
  }

  // Where its own disk fails its leader goes on alone: this side is not to take its place.
  void keeper_failed(const std::string& why, bool is_own) {
    if (!is_own) return lose(why, false);
    End ended = end(why);
    ended.lost.was_in_sync = false;
    retry_ = std::clamp(retry_ * 2, options_.first_retry, options_.last_retry);
    try_again(retry_);
    const auto handler = handlers_.lost;
    tell({Kind::kOwnJournal, why});
    if (handler && !is_closed_) handler(ended.lost);
  }

  asio::io_context& io_;
  const MirrorClientOptions options_;
  Handlers handlers_;
  LinkConnector connector_;
  asio::steady_timer timer_;        // until the next attempt
  asio::steady_timer watch_timer_;  // of the connection
  std::unique_ptr<MirrorKeeper> keeper_;
  std::shared_ptr<FrameStream> frames_;  // second owner: its operations; null: not connected
  Session session_ = 0;
  bool is_welcome_ = false, is_in_sync_ = false;
  bool is_closed_ = false, is_destroyed_ = false;
  std::string leader_;  // its name
  Clock::time_point last_heard_{};
  milliseconds pause_{0}, retry_{0};
  std::optional<MirrorTrouble> told_;
};

MirrorClient::MirrorClient(asio::io_context& io, std::unique_ptr<journal::JournalFile> file,
                           MirrorClientOptions options, Handlers handlers)
    : impl_(std::make_shared<Impl>(io, std::move(options), std::move(handlers))) {
  impl_->start(std::move(file));
}

MirrorClient::~MirrorClient() { impl_->destroy(); }

void MirrorClient::stop(std::function<void(MirroredJournal)> done) { impl_->stop(std::move(done)); }

bool MirrorClient::is_in_sync() const { return impl_->is_in_sync(); }

}  // namespace ddprun::ha
