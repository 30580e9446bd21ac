// SPDX-License-Identifier: Apache-2.0
// A standby's end of a mirror: has its journal, and makes it what its leader's is for as long as it
// is given a connection to one (docs/ha-mirror.md). io thread only.
#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "rendezvous/ha/leader_rows.h"
#include "rendezvous/ha/mirror_keeper.h"
#include "rendezvous/journal/journal_file.h"
#include "rendezvous/membership/frame_stream.h"

namespace ddprun::ha {

struct MirrorClientOptions {
  std::chrono::milliseconds lease{3'000};  // nothing heard for so long: the leader is lost
  std::chrono::milliseconds ping_every{300};
  // After its own journal could not be written: until can_mirror() again; doubles with each until
  // this standby is in sync.
  std::chrono::milliseconds first_retry{1'000}, last_retry{60'000};
};

// A session has ended.
struct LostLeader {
  std::string why;
  // All that the leader told anybody is in this side's journal, whose rows say so. It may be gone,
  // and may also have decided that this standby is.
  bool was_in_sync = false;
  bool is_yours = false;    // it said that it decides nothing any more
  bool is_silence = false;  // nothing was heard for the lease; else the connection ended
};

class MirrorClient {
 public:
  // Called from the io context, never from inside a call of this class, and not after stop().
  struct Handlers {
    std::function<void(const std::string& leader)> copying;  // it took this standby in
    std::function<void(const SyncedWith&)> in_sync;          // and that is kept, too
    std::function<void(const LostLeader&)> lost;             // once for each mirror()
    // This side's own journal can't be written: each that differs from the last one. Before `lost`.
    std::function<void(const std::string& what)> trouble;
  };

  // `file` was loaded.
  MirrorClient(boost::asio::io_context& io, std::unique_ptr<journal::JournalFile> file,
               MirrorClientOptions options, Handlers handlers);
  ~MirrorClient();  // closes; no call follows
  MirrorClient(const MirrorClient&) = delete;
  MirrorClient& operator=(const MirrorClient&) = delete;

  // Begins a session: `frames` is a connection on which both have said hello (Call::mirror()). Not
  // while there is one. `leader` is its name.
  void mirror(std::shared_ptr<membership::FrameStream> frames, const std::string& leader);
  // False: there is a session, or its journal could not be written a moment ago.
  bool can_mirror() const;
  bool is_in_sync() const;

  // This standby will not go on with the leader's jobs: its rows say so, then the leader hears it,
  // and goes on alone. `done` is called once, from the io context, after 2 s at the latest; no call
  // of a handler follows. Where it is not in sync its rows stay as they are. stop() may follow.
  void leave(std::function<void()> done);
  // From now on nothing is taken from the leader. `done` is called once, from the io context, with
  // the journal; not where this object is destroyed before. A disk that hangs keeps it waiting.
  void stop(std::function<void(MirroredJournal)> done);

 private:
  class Impl;
  const std::shared_ptr<Impl> impl_;  // second owner: what is under way
};

}  // namespace ddprun::ha
