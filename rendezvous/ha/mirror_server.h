// SPDX-License-Identifier: Apache-2.0
// A leader's end of a mirror: takes one standby at a time in, and is the way of MirrorWriter's
// frames to it (docs/ha-mirror.md). One object for each term. io thread only.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "common/clock.h"
#include "rendezvous/ha/leader_rows.h"
#include "rendezvous/ha/mirror_link.h"
#include "rendezvous/ha/mirror_writer.h"
#include "rendezvous/journal/journal.h"
#include "rendezvous/journal/row_file.h"
#include "rendezvous/membership/frame_stream.h"

namespace ddprun::ha {

struct MirrorServerOptions {
  std::string name;  // HOST:PORT, for people
  TermId term;       // the leader's
  MirrorWriterOptions writer;
  std::chrono::milliseconds hello_limit{10'000};  // from its proof, or its connection
  std::chrono::milliseconds silence_limit{2'000};
  std::chrono::milliseconds row_limit{5'000};  // for kStandbyRow's commit
};

struct LostStandby {
  std::string name, why;
  bool was_synced = false;  // the term ends: journal::Deposed follows, where it is told of
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

  // Once, before start(): what the journal writes to.
  std::unique_ptr<journal::BatchWriter> make_writer(std::unique_ptr<journal::RowFile> file);
  // From here on standbys are taken in. The journal, over that writer, lives until stop().
  void start(journal::Journal& journal);
  // An upgraded stream of kMirrorPath whose peer has proved itself; `place` is let go of once it
  // has said hello, or has gone.
  void take(const std::shared_ptr<membership::FrameStream>& frames, std::shared_ptr<void> place);
  void stop();  // closes every connection; no call follows

  struct Standby {
    std::string name;
    bool is_in_sync = false;
  };
  std::optional<Standby> standby() const;
  // The file fails while a standby has what it lacks.
  std::optional<journal::JournalTrouble> file_trouble() const;
  // Once the journal has ended: what the standby acknowledged, and the file lacks.
  journal::Batch owed() const;

 private:
  using Frames = std::shared_ptr<membership::FrameStream>;
  using Session = MirrorLink::Session;
  struct Newcomer {
    Frames frames;  // second owner: its operations
    std::shared_ptr<void> place;
    std::unique_ptr<boost::asio::steady_timer> timer;
  };
  struct Current {
    Frames frames;  // likewise
    std::string name;
    Session session = 0;
    Clock::time_point last_heard{};
    bool is_in_sync = false;
  };

  void said_hello(std::uint64_t number, std::string_view text);
  void drop(std::uint64_t number, const std::string& why);
  void refuse(const Frames& frames, const std::string& name, const std::string& reason);
  void adopt(const Frames& frames, const std::string& name);
  void received(Session session, std::string_view text);
  void heard(Session session);
  void watch();
  void caught_up(Session session);
  void row_is_kept(Session session);
  void ended(Session session, const std::string& why, bool was_synced);
  bool is_current(Session session) const { return current_ && current_->session == session; }

  boost::asio::io_context& io_;
  const MirrorServerOptions options_;
  Handlers handlers_;
  std::shared_ptr<MirrorLink> link_;     // second owner: the writer
  journal::Journal* journal_ = nullptr;  // between start() and stop()
  std::map<std::uint64_t, Newcomer> newcomers_;
  std::uint64_t next_newcomer_ = 0;
  std::unique_ptr<Current> current_;
  boost::asio::steady_timer watch_timer_, row_timer_;
  bool has_row_ = false;      // kStandbyRow is in the journal, or on its way
  std::string last_refusal_;  // each is said once in a row
};

}  // namespace ddprun::ha
