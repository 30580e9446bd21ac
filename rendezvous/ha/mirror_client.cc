// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/ha/mirror_client.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <variant>

#include "common/check.h"
#include "common/clock.h"
#include "common/error.h"
#include "common/log.h"
#include "rendezvous/ha/mirror_codec.h"

namespace ddprun::ha {

namespace asio = boost::asio;
using membership::FrameStream;
using std::chrono::milliseconds;

namespace {
constexpr milliseconds kLeaveLimit{2'000};   // for its own disk
constexpr milliseconds kLastWordLimit{500};  // for its last word
}  // namespace

class MirrorClient::Impl : public std::enable_shared_from_this<Impl> {
  // `handler`, while its session is the current one.
  template <typename Handler>
  auto guard(Handler handler) {
    return [weak = weak_from_this(), handler]<typename... Args>(MirrorKeeper::Session session,
                                                                Args&&... args) {
      const auto self = weak.lock();
      if (self && self->is_current(session)) handler(*self, std::forward<Args>(args)...);
    };
  }

 public:
  using Session = MirrorKeeper::Session;

  Impl(asio::io_context& io, MirrorClientOptions options, Handlers handlers)
      : io_(io),
        options_(options),
        handlers_(std::move(handlers)),
        watch_timer_(io),
        leave_timer_(io) {}

  void start(std::unique_ptr<journal::JournalFile> file) {
    MirrorKeeper::Events events;
    events.got = guard([](Impl& self, std::uint64_t bytes) {
      self.got_bytes_ = bytes;
      self.say(mirror::Got{bytes});
    });
    events.acked = guard([](Impl& self, std::uint64_t number) { self.say(mirror::Ack{number}); });
    events.synced = guard([](Impl& self, const SyncedWith& synced) { self.synced(synced); });
    events.caught_up = guard([](Impl& self) { self.took_all(); });
    events.failed =
        guard([](Impl& self, const MirrorKeeper::Failure& its) { self.keeper_failed(its); });
    keeper_ = std::make_unique<MirrorKeeper>(
        std::move(file),
        [&io = io_](std::function<void()> call) { asio::post(io, std::move(call)); },
        std::move(events), options_.first_retry, options_.last_retry);
  }

  void mirror(std::shared_ptr<FrameStream> frames, const std::string& leader) {
    DDPRUN_CHECK(!frames_ && !is_closed_);
    frames_ = std::move(frames);
    leader_ = one_line(leader);
    const Session session = ++session_;
    is_welcome_ = is_yours_ = said_in_sync_ = false;
    received_bytes_ = got_bytes_ = 0;
    last_heard_ = Clock::now();
    if (frames_->is_closed()) {
      const auto weak = weak_from_this();
      return asio::post(io_, [weak, session] {
        const auto self = weak.lock();
        if (self && self->is_current(session)) self->lose("the connection has ended", false);
      });
    }
    frames_->limit_messages(kPartHeaderBytes + kMaxPartBytes);
    frames_->start(frame_handlers(session));
    say(mirror::Mirror{});
    watch(session);
  }

  bool can_mirror() const { return !frames_ && !is_closed_ && Clock::now() >= retry_at_; }
  bool is_in_sync() const { return is_in_sync_; }

  // The session stays until its rows are changed: what the leader says meanwhile is not taken.
  void leave(std::function<void()> done) {
    handlers_ = {};
    if (!frames_ || !is_in_sync_) {
      close();
      return asio::post(io_, std::move(done));
    }
    const auto weak = weak_from_this();
    left_ = std::move(done);
    leave_timer_.expires_after(kLeaveLimit);
    leave_timer_.async_wait([weak](boost::system::error_code error) {
      const auto self = weak.lock();
      if (!error && self) self->has_left(false);
    });
    keeper_->leave([weak](bool is_kept) {
      if (const auto self = weak.lock()) self->has_left(is_kept);
    });
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
    left_ = nullptr;
    close();
    keeper_.reset();
  }

 private:
  bool is_current(Session session) const { return frames_ && session == session_; }

  void say(const mirror::CallerMessage& message) { frames_->send(mirror::encode(message)); }

  // No call follows, but for leave()'s.
  void close() {
    handlers_ = {};
    is_closed_ = true;
    ++session_;
    watch_timer_.cancel();
    if (frames_) frames_->close();
    frames_.reset();
    is_in_sync_ = false;
    if (keeper_) keeper_->end();
  }

  FrameStream::Handlers frame_handlers(Session session) {
    FrameStream::Handlers handlers;
    const auto weak = weak_from_this();
    const auto current = [weak, session]() -> std::shared_ptr<Impl> {
      const auto self = weak.lock();
      return self && self->is_current(session) ? self : nullptr;
    };
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
      if (const auto self = current()) self->frames_ended(why);
    };
    return handlers;
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

  // ---- what the leader says ----

  void received(std::string_view text) {
    last_heard_ = Clock::now();
    if (is_yours_) return;
    try {
      const auto message = mirror::decode_called_message(text);
      if (const auto* refused = std::get_if<mirror::Refused>(&message)) {
        return lose(concat("takes this standby not in: ", one_line(refused->reason)), false);
      }
      if (const auto* welcome = std::get_if<mirror::Welcome>(&message)) return greet(*welcome);
      if (!is_welcome_) throw Error(ErrorCode::kProtocol, "its first message is no welcome");
      if (const auto* in_sync = std::get_if<mirror::InSync>(&message)) return sync(*in_sync);
      if (!std::holds_alternative<mirror::Yours>(message)) {
        throw Error(ErrorCode::kProtocol, "it says hello again");
      }
      is_yours_ = true;
      keeper_->ask_when_done(session_);
    } catch (const Error& error) {
      lose(error.what(), false);
    }
  }

  void greet(const mirror::Welcome& welcome) {
    if (is_welcome_) throw Error(ErrorCode::kProtocol, "it says welcome again");
    is_welcome_ = true;
    MirrorKeeper::Leader leader;
    leader.name = leader_;
    leader.boot = welcome.boot;
    keeper_->begin(session_, leader);
    const auto handler = handlers_.copying;
    if (handler) handler(leader_);
  }

  void sync(const mirror::InSync& in_sync) {
    if (std::exchange(said_in_sync_, true)) {
      throw Error(ErrorCode::kProtocol, "it says in_sync again");
    }
    SyncedWith synced;
    synced.term = in_sync.term;
    synced.leader = leader_;
    synced.line = in_sync.line;
    keeper_->sync(session_, synced);
  }

  void received_part(std::string_view bytes) {
    last_heard_ = Clock::now();
    if (is_yours_) return;
    if (!is_welcome_) return lose("it sends rows before its welcome", false);
    received_bytes_ += bytes.size();
    if (received_bytes_ - got_bytes_ > kMirrorWindowBytes) {
      return lose(concat("it sends more than ", kMirrorWindowBytes, " bytes ahead"), false);
    }
    keeper_->part(session_, std::string(bytes));
  }

  void synced(const SyncedWith& synced) {
    is_in_sync_ = true;
    retry_ = {};
    told_.clear();
    const auto handler = handlers_.in_sync;
    if (handler) handler(synced);
  }

  // ---- the end of a session ----

  // What it sent before it said `yours` is taken first.
  void frames_ended(const std::string& why) {
    if (!is_yours_) lose(why, false);
  }

  void took_all() {
    if (is_yours_) lose("it said that the jobs are this side's now", false);
  }

  LostLeader end(const std::string& why) {
    LostLeader lost;
    lost.why = why;
    lost.was_in_sync = std::exchange(is_in_sync_, false);
    lost.is_yours = is_yours_;
    if (frames_) frames_->close();
    frames_.reset();
    watch_timer_.cancel();
    if (is_welcome_) keeper_->end();
    return lost;
  }

  void lose(const std::string& why, bool is_silence) {
    LostLeader lost = end(why);
    lost.is_silence = is_silence;
    const auto handler = handlers_.lost;  // a copy: it may stop this
    if (left_) return has_left(false);
    if (handler) handler(lost);
  }

  // Where its own disk fails its leader goes on without it: this side is not to take its place.
  void keeper_failed(const MirrorKeeper::Failure& its) {
    if (!its.is_own) return lose(its.why, false);
    if (left_) return has_left(its.has_left);
    if (its.has_left) say_leaves();
    LostLeader lost = end(its.why);
    lost.was_in_sync = false;
    retry_ = std::clamp(retry_ * 2, options_.first_retry, options_.last_retry);
    retry_at_ = Clock::now() + retry_;
    const auto self = shared_from_this();  // a handler may let go of it
    const auto trouble = handlers_.trouble;
    if (std::exchange(told_, its.why) != its.why && trouble) trouble(its.why);
    const auto handler = handlers_.lost;
    if (handler && !is_closed_) handler(lost);
  }

  // Its last word.
  void say_leaves() {
    say(mirror::Leaves{});
    frames_->close_when_sent(kLastWordLimit);
    frames_.reset();
  }

  void has_left(bool is_kept) {
    if (!left_) return;
    leave_timer_.cancel();
    if (frames_ && is_kept) say_leaves();
    close();
    const auto done = std::exchange(left_, nullptr);
    done();
  }

  asio::io_context& io_;
  const MirrorClientOptions options_;
  Handlers handlers_;
  asio::steady_timer watch_timer_, leave_timer_;
  std::unique_ptr<MirrorKeeper> keeper_;
  std::shared_ptr<FrameStream> frames_;  // second owner: its operations; null: no session
  Session session_ = 0;
  bool is_welcome_ = false, said_in_sync_ = false, is_in_sync_ = false;
  bool is_yours_ = false;  // it said so
  bool is_closed_ = false, is_destroyed_ = false;
  std::string leader_;                                // its name
  std::uint64_t received_bytes_ = 0, got_bytes_ = 0;  // of parts
  Clock::time_point last_heard_{}, retry_at_{};
  milliseconds retry_{0};
  std::string told_;            // its own journal's last trouble
  std::function<void()> left_;  // set: it leaves
};

MirrorClient::MirrorClient(asio::io_context& io, std::unique_ptr<journal::JournalFile> file,
                           MirrorClientOptions options, Handlers handlers)
    : impl_(std::make_shared<Impl>(io, options, std::move(handlers))) {
  impl_->start(std::move(file));
}

MirrorClient::~MirrorClient() { impl_->destroy(); }

void MirrorClient::mirror(std::shared_ptr<FrameStream> frames, const std::string& leader) {
  impl_->mirror(std::move(frames), leader);
}
bool MirrorClient::can_mirror() const { return impl_->can_mirror(); }
bool MirrorClient::is_in_sync() const { return impl_->is_in_sync(); }
void MirrorClient::leave(std::function<void()> done) { impl_->leave(std::move(done)); }
void MirrorClient::stop(std::function<void(MirroredJournal)> done) { impl_->stop(std::move(done)); }

}  // namespace ddprun::ha
