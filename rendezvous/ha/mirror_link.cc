// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/ha/mirror_link.h"

#include <utility>

#include "common/check.h"
#include "common/error.h"
#include "rendezvous/ha/mirror_codec.h"
#include "rendezvous/journal/journal.h"

namespace ddprun::ha {

MirrorLink::MirrorLink(std::function<void(std::function<void()>)> post, Events events)
    : post_(std::move(post)), events_(std::move(events)) {}

// ---- io thread ----

MirrorLink::Session MirrorLink::open(const std::string& name) {
  const std::lock_guard lock(mutex_);
  DDPRUN_CHECK(stage_ == Stage::kAlone && !is_open_);
  stage_ = Stage::kCopying;
  is_open_ = true;
  is_told_ = false;
  name_ = name;
  sent_bytes_ = got_bytes_ = transfer_ = acked_ = 0;
  changed_.notify_all();
  return ++session_;
}

void MirrorLink::got(Session session, std::uint64_t num_bytes) {
  const std::lock_guard lock(mutex_);
  if (!is_current(session)) return;
  if (num_bytes < got_bytes_ || num_bytes > sent_bytes_) {
    throw Error(ErrorCode::kProtocol,
                concat("it got ", num_bytes, " bytes of ", sent_bytes_, ", and had ", got_bytes_));
  }
  got_bytes_ = num_bytes;
  changed_.notify_all();
}

void MirrorLink::acked(Session session, std::uint64_t number) {
  const std::lock_guard lock(mutex_);
  if (!is_current(session)) return;
  if (number != acked_ + 1 || number > transfer_ || got_bytes_ != sent_bytes_) {
    throw Error(ErrorCode::kProtocol, concat("it acknowledges transfer ", number,
                                             ", which it does not have yet, or had"));
  }
  acked_ = number;
  changed_.notify_all();
}

bool MirrorLink::sync(Session session) {
  const std::lock_guard lock(mutex_);
  if (!is_current(session) || stage_ != Stage::kMirroring) return false;
  stage_ = Stage::kSynced;
  return true;
}

// ---- any thread ----

MirrorLink::Stage MirrorLink::stage() const {
  const std::lock_guard lock(mutex_);
  return stage_;
}

void MirrorLink::end(Session session, const std::string& why) {
  const std::lock_guard lock(mutex_);
  if (is_current(session)) end_locked({why, stage_ == Stage::kSynced, false});
}

void MirrorLink::end_by_own_disk(const std::string& why) {
  const std::lock_guard lock(mutex_);
  if (is_open_) end_locked({why, stage_ == Stage::kSynced, true});
}

void MirrorLink::leave(Session session, const std::string& why) {
  const std::lock_guard lock(mutex_);
  if (is_current(session)) end_locked({why, false, false});
}

void MirrorLink::end_locked(MirrorEnd end) {
  stage_ = end.was_synced ? Stage::kDeposed : Stage::kAlone;
  is_open_ = false;
  end_ = end;
  changed_.notify_all();
  post_([ended = events_.ended, session = session_, end = std::move(end)] { ended(session, end); });
}

void MirrorLink::cancel() {
  const std::lock_guard lock(mutex_);
  cancelled_ = true;
  changed_.notify_all();
}

bool MirrorLink::is_cancelled() const {
  const std::lock_guard lock(mutex_);
  return cancelled_;
}

void MirrorLink::say(LogLevel level, const std::string& text) {
  post_([say = events_.say, level, text] { say(level, text); });
}

std::optional<Clock::time_point> MirrorLink::writes_since() const {
  const std::lock_guard lock(mutex_);
  return writes_since_;
}

// ---- the journal's threads ----

std::optional<MirrorLink::Session> MirrorLink::await_standby() {
  Lock lock(mutex_);
  changed_.wait(lock, [this] { return cancelled_ || (is_open_ && !is_told_); });
  if (cancelled_) return std::nullopt;
  is_told_ = true;
  return session_;
}

void MirrorLink::set_writes(bool writes) {
  const std::lock_guard lock(mutex_);
  writes_since_ = writes ? std::optional(Clock::now()) : std::nullopt;
}

std::optional<MirrorLink::Session> MirrorLink::mirroring() const {
  const std::lock_guard lock(mutex_);
  if (stage_ == Stage::kDeposed) {
    throw journal::Deposed(end_.own_disk
                               ? concat(end_.why, "; the standby ", one_line(name_), " goes on")
                               : concat("the standby ", one_line(name_), " is lost: ", end_.why));
  }
  if (stage_ != Stage::kMirroring && stage_ != Stage::kSynced) return std::nullopt;
  return session_;
}

void MirrorLink::check_current(Session session) const {
  if (cancelled_) throw std::runtime_error("the mirror is being ended");
  if (!is_current(session)) throw MirrorLost(end_.why);
}

void MirrorLink::mirror(Session session) {
  const std::lock_guard lock(mutex_);
  check_current(session);
  stage_ = Stage::kMirroring;
  post_([caught_up = events_.caught_up, session] { caught_up(session); });
}

std::uint64_t MirrorLink::begin_transfer(Session session) {
  const std::lock_guard lock(mutex_);
  check_current(session);
  return ++transfer_;
}

template <typename Ready>
void MirrorLink::wait(Lock& lock, Session session, Deadline deadline, const std::string& what,
                      Ready ready) {
  const Clock::time_point begun = Clock::now();
  changed_.wait_until(lock, deadline.at(),
                      [&] { return cancelled_ || !is_current(session) || ready(); });
  if (!cancelled_ && is_current(session) && !ready()) {
    const auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begun);
    end_locked({concat("waited ", waited.count(), " ms for it to ", what), stage_ == Stage::kSynced,
                false});
  }
  check_current(session);
}

void MirrorLink::send_part(Session session, std::string part, Deadline deadline) {
  Lock lock(mutex_);
  wait(lock, session, deadline, "take more rows", [&] {
    return sent_bytes_ == got_bytes_ ||
           sent_bytes_ + part.size() <= got_bytes_ + kMirrorWindowBytes;
  });
  sent_bytes_ += part.size();
  post_([send = events_.send, session, part = std::move(part)]() mutable {
    send(session, std::move(part));
  });
}

void MirrorLink::await_ack(Session session, std::uint64_t number, Deadline deadline) {
  Lock lock(mutex_);
  wait(lock, session, deadline, concat("acknowledge transfer ", number),
       [&] { return acked_ >= number; });
}

}  // namespace ddprun::ha
