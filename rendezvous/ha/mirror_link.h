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
#include "rendezvous/journal/row.h"

namespace ddprun::ha {

// Thrown to a journal's thread: the standby's connection has ended, and link.stage() says what that
// means.
class MirrorLost : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
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
    std::function<void(Session)> caught_up;  // kCopying → kMirroring
    std::function<void(Session, const std::string& why, bool was_synced)> ended;  // once each
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
  // Ends all waits, for ever: by an exception that is neither MirrorLost nor Deposed.
  void cancel();
  bool is_cancelled() const;
  void say(LogLevel level, const std::string& text);

  // Of the leader's own file, while another one has what it lacks.
  void set_file_trouble(const std::string& what, Clock::time_point since);  // empty: none
  std::optional<std::pair<std::string, Clock::time_point>> file_trouble() const;
  void leave(const journal::Batch& owed);  // it lacks these rows, and is closed now
  journal::Batch owed() const;

  // ---- the journal's threads ----
  // A standby of which no copy was begun; nullopt: `until` passed, or nudge() or cancel() was
  // called.
  std::optional<Session> await_standby(Clock::time_point until);
  void nudge();
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
  void end_locked(Session session, const std::string& why);
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
  bool nudged_ = false;
  bool cancelled_ = false;
  std::string name_, why_;  // session_'s standby; why it ended
  std::uint64_t sent_bytes_ = 0, got_bytes_ = 0;
  std::uint64_t transfer_ = 0, acked_ = 0;  // numbers
  std::string file_trouble_;
  Clock::time_point file_trouble_since_{};
  journal::Batch owed_;
};

}  // namespace ddprun::ha
