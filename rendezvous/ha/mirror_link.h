// SPDX-License-Identifier: Apache-2.0
// Where a leader's two ends of a mirror meet: the io thread has the standby's connection, the
// journal's threads have the rows (docs/ha-mirror.md, "From alone to mirrored"). Any thread, but
// where a group says another rule.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "common/clock.h"
#include "common/log.h"

namespace ddprun::ha {

// Thrown to a journal's thread: the standby's connection has ended, and link.stage() says what that
// means.
class MirrorLost : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// How a session ended.
struct MirrorEnd {
  std::string why;
  bool was_synced = false;  // the leader is deposed
  bool own_disk = false;    // by its own disk, and not by the standby
};

class MirrorLink {
 public:
  enum class Stage {
    kAlone,      // no standby that has said hello
    kCopying,    // there is one; commits don't wait for it
    kMirroring,  // commits go there first; where it is lost, it was none
    kSynced,     // it may have been told that it is in sync
    kDeposed,    // it is lost, and may lead: for ever
  };
  using Session = std::uint64_t;  // one standby's connection

  // Called by `post`, so on the io thread, later.
  struct Events {
    std::function<void(Session, std::string frame)> send;
    std::function<void(Session)> caught_up;                // kCopying → kMirroring
    std::function<void(Session, const MirrorEnd&)> ended;  // once each
    std::function<void(LogLevel, const std::string& text)> say;
  };
  // `post` runs a function on the io thread, later, and outlives this.
  MirrorLink(std::function<void(std::function<void()>)> post, Events events);

  // ---- io thread ----
  // kAlone → kCopying; `name` is for people.
  Session open(const std::string& name);
  // What the standby said. Throws Error(kProtocol): it makes no sense.
  void got(Session session, std::uint64_t num_bytes);
  void acked(Session session, std::uint64_t number);
  // kMirroring → kSynced. False: it is lost meanwhile.
  bool sync(Session session);

  // ---- any thread ----
  Stage stage() const;
  // kSynced → kDeposed, else → kAlone. Does nothing where that session has ended.
  void end(Session session, const std::string& why);
  // Likewise, of whatever session there is: the leader's own file fails, or hangs.
  void end_by_own_disk(const std::string& why);
  // → kAlone, from wherever: the standby will never go on with its rows.
  void leave(Session session, const std::string& why);
  // Ends all waits, for ever: by an exception that is neither MirrorLost nor Deposed.
  void cancel();
  bool is_cancelled() const;
  void say(LogLevel level, const std::string& text);
  // Since when the write to the leader's own file is under way that is; nullopt: none is.
  std::optional<Clock::time_point> writes_since() const;

  // ---- the journal's threads ----
  // Waits for a standby of which no copy was begun; nullopt: cancel() was called.
  std::optional<Session> await_standby();
  // A write to the leader's own file begins, or has ended.
  void set_writes(bool writes);
  // The session that commits wait for; nullopt: none. Throws journal::Deposed once it is.
  std::optional<Session> mirroring() const;
  // kCopying → kMirroring. Throws MirrorLost.
  void mirror(Session session);
  // The next transfer's number. Throws MirrorLost.
  std::uint64_t begin_transfer(Session session);
  // Waits for room, then sends. When the deadline has passed, the session has ended. Throws
  // MirrorLost.
  void send_part(Session session, std::string part, Deadline deadline);
  // Likewise.
  void await_ack(Session session, std::uint64_t number, Deadline deadline);

 private:
  using Lock = std::unique_lock<std::mutex>;

  bool is_current(Session session) const { return session == session_ && is_open_; }
  void check_current(Session session) const;
  void end_locked(MirrorEnd end);
  template <typename Ready>
  void wait(Lock& lock, Session session, Deadline deadline, const std::string& what, Ready ready);

  const std::function<void(std::function<void()>)> post_;
  const Events events_;

  // Guarded by mutex_.
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Stage stage_ = Stage::kAlone;
  Session session_ = 0;
  bool is_open_ = false;  // session_
  bool is_told_ = false;  // await_standby() has told of it
  bool cancelled_ = false;
  std::string name_;  // session_'s standby
  MirrorEnd end_;     // how it ended
  std::uint64_t sent_bytes_ = 0, got_bytes_ = 0;
  std::uint64_t transfer_ = 0, acked_ = 0;  // numbers
  std::optional<Clock::time_point> writes_since_;
};

}  // namespace ddprun::ha
