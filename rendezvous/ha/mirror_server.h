// SPDX-License-Identifier: Apache-2.0
// A leader's end of a mirror: takes one standby at a time in, and is the way of MirrorWriter's
// frames to it (docs/ha-mirror.md). One object for each term. io thread only.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "common/clock.h"
#include "rendezvous/ha/leader_rows.h"
#include "rendezvous/ha/mirror_link.h"
#include "rendezvous/ha/mirror_writer.h"
#include "rendezvous/ha/standby_patience.h"
#include "rendezvous/journal/journal.h"
#include "rendezvous/journal/row_file.h"
#include "rendezvous/membership/frame_stream.h"

namespace ddprun::ha {

struct MirrorServerOptions {
  std::string name;  // HOST:PORT, for people
  TermId term;       // the leader's
  TermLine line;     // begins with it; at first: see set_line()
  MirrorWriterOptions writer;
  std::chrono::milliseconds silence_limit{2'000};
  std::chrono::milliseconds row_limit{5'000};   // for kStandbyRow's commit
  std::chrono::milliseconds file_limit{2'000};  // for one commit to its own file, while mirrored
};

struct LostStandby {
  std::string name, why;
  // The term is over: nothing of it counts any more, and journal::Deposed follows where the
  // journal's own disk does not hang.
  bool was_synced = false;
  // By this side's own disk: the standby is told that all is its own now. It was not synced: this
  // side goes on alone, as with a disk that fails.
  bool own_disk = false;
};

// Held by shared_ptr, of which what is under way keeps a weak one.
class MirrorServer : public std::enable_shared_from_this<MirrorServer> {
 public:
  // Called from the io context. Both are logged already.
  struct Handlers {
    std::function<void(const std::string& standby)> mirrored;  // it was told that it is in sync
    std::function<void(const LostStandby&)> lost;
  };
  MirrorServer(boost::asio::io_context& io, MirrorServerOptions options, Handlers handlers);
  ~MirrorServer();  // closes the connection; no call follows
  MirrorServer(const MirrorServer&) = delete;
  MirrorServer& operator=(const MirrorServer&) = delete;

  // Once, before start(): what the journal writes to.
  std::unique_ptr<journal::BatchWriter> make_writer(std::unique_ptr<journal::RowFile> file);
  // From here on standbys are taken in. The journal, over that writer, lives until stop().
  void start(journal::Journal& journal);
  // Who asked to mirror, after both said hello: is taken in, or refused by a line, and closed.
  // What it has given up is in the leader's line, and that is kept, before it is in sync.
  void adopt(const std::shared_ptr<membership::FrameStream>& frames, const PairState& theirs);
  // Who is kept out, and for how long; before the first adopt(). Without it each object has its
  // own.
  void set_patience(std::shared_ptr<StandbyPatience> patience) { patience_ = std::move(patience); }
  // The term's line is longer now: its owner has committed kTermRow with it.
  void set_line(TermLine line) { line_ = std::move(line); }
  // The journal ends, right after this. Who was not in sync is closed; who is stays until
  // hand_over() or the end of this. No call of a handler follows.
  void stop();
  // As stop(); all that was committed is kept, and nothing is told to anybody any more. Who is in
  // sync is told that all is its own now. `done` is called once, from the io context: it has heard
  // that, or went, or there is none, or 500 ms passed. Not where this object is destroyed before.
  // What is committed later is kept nowhere: journal::Deposed.
  void hand_over(std::function<void()> done);

 private:
  using Frames = std::shared_ptr<membership::FrameStream>;
  using Session = MirrorLink::Session;
  struct Current {
    Frames frames;  // second owner: its operations
    std::string name;
    Session session = 0;
    Clock::time_point last_heard{};
    bool is_in_sync = false;
    TermLine given_up;  // by it
    TermLine line;      // the leader's, with that: in_sync's
  };

  void refuse(const Frames& frames, const std::string& name, const std::string& reason);
  void received(Session session, std::string_view text);
  void heard(Session session);
  void watch();
  void caught_up(Session session);
  void row_is_kept(Session session);
  void ended(Session session, const MirrorEnd& end);
  void close();
  bool is_current(Session session) const { return current_ && current_->session == session; }

  boost::asio::io_context& io_;
  const MirrorServerOptions options_;
  Handlers handlers_;
  std::shared_ptr<MirrorLink> link_;     // second owner: the writer
  journal::Journal* journal_ = nullptr;  // between start() and stop()
  TermLine line_;
  std::unique_ptr<Current> current_;
  boost::asio::steady_timer watch_timer_, row_timer_;
  bool has_row_ = false;                  // kStandbyRow is in the journal, or on its way
  std::function<void()> is_handed_over_;  // set: that is under way
  // Second owner: the door, over all terms.
  std::shared_ptr<StandbyPatience> patience_ = std::make_shared<StandbyPatience>();
  std::string last_refusal_;  // each is said once in a row
};

}  // namespace ddprun::ha
