// SPDX-License-Identifier: Apache-2.0
// A standby's journal, which a mirror writes on a thread of its own (docs/ha-mirror.md): a disk
// that is slow keeps nobody from hearing the leader. io thread only, but for what its thread does.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "rendezvous/ha/leader_rows.h"
#include "rendezvous/journal/content.h"
#include "rendezvous/journal/journal_file.h"
#include "rendezvous/journal/row.h"

namespace ddprun::ha {

// What a standby has when it ends taking anything from its leader.
struct MirroredJournal {
  std::unique_ptr<journal::JournalFile> file;
  journal::Content content;  // with the rows of leader_rows.h, as they are or are to be
  std::string trouble;       // not empty: the content can't be read
  // Applied to the content it makes it what it was before the last batch, of which it is not known
  // whether the leader has told anybody; rows of "jobs/" alone.
  journal::Batch before;
};

class MirrorKeeper {
 public:
  using Session = std::uint64_t;  // one connection to a leader; not 0

  struct Leader {
    std::string name, boot;
  };
  struct Failure {
    std::string why;
    bool is_own = false;    // this side's journal can't be written; else the leader makes no sense
    bool has_left = false;  // is_own: its rows are a copy, and nobody goes on with them
  };

  // Called by `post`, so on the io thread, later.
  struct Events {
    std::function<void(Session, std::uint64_t bytes)> got;     // of parts that it is done with
    std::function<void(Session, std::uint64_t number)> acked;  // this transfer is kept
    std::function<void(Session, const SyncedWith&)> synced;    // that it is in sync is kept
    std::function<void(Session)> caught_up;                    // ask_when_done()'s
    std::function<void(Session, const Failure&)> failed;       // once for a session
  };

  // `file` was loaded. `post` runs a function on the io thread, later, and outlives this. Where the
  // rows can't be made a copy's after a failure, that is tried again, after pauses of these.
  MirrorKeeper(std::unique_ptr<journal::JournalFile> file,
               std::function<void(std::function<void()>)> post, Events events,
               std::chrono::milliseconds first_retry, std::chrono::milliseconds last_retry);
  // As end(). A disk that hangs is left behind after 2 s, with its thread and the journal.
  ~MirrorKeeper();
  MirrorKeeper(const MirrorKeeper&) = delete;
  MirrorKeeper& operator=(const MirrorKeeper&) = delete;

  // What follows is of this session.
  void begin(Session session, const Leader& leader);
  void part(Session session, std::string frame);
  void sync(Session session, const SyncedWith& synced);
  // `caught_up` follows what was said of the session before.
  void ask_when_done(Session session);
  // Nothing that came of the session, and is not kept yet, is kept from now on; but for a commit
  // that is under way.
  void end();
  // As end(); then rows that are in sync become a copy's. `done` is called once, by `post`: whether
  // they are.
  void leave(std::function<void(bool is_kept)> done);
  // As end(), for good. `done` is called once, by `post`.
  void stop(std::function<void(MirroredJournal)> done);

 private:
  class Impl;
  const std::shared_ptr<Impl> impl_;  // second owner: its thread
  std::thread thread_;
};

}  // namespace ddprun::ha
