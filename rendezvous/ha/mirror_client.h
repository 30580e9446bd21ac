// SPDX-License-Identifier: Apache-2.0
// A standby's end of a mirror: makes its own journal what its leader's is, for as long as there is
// one (docs/ha-mirror.md). io thread only.
#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "common/endpoint.h"
#include "rendezvous/ha/leader_rows.h"
#include "rendezvous/ha/mirror_keeper.h"
#include "rendezvous/journal/journal_file.h"
#include "rendezvous/membership/link_security.h"

namespace ddprun::ha {

struct MirrorClientOptions {
  Endpoint leader;
  membership::LinkSecurity security;
  std::string name;                        // HOST:PORT, for people
  std::chrono::milliseconds lease{3'000};  // nothing heard for so long: the leader is lost
  std::chrono::milliseconds ping_every{300};
  std::chrono::milliseconds attempt_limit{2'000};
  // Between attempts; doubles with each until this standby is in sync.
  std::chrono::milliseconds first_pause{10}, last_pause{500};
  // Likewise while its own journal can't be written.
  std::chrono::milliseconds first_retry{1'000}, last_retry{60'000};
};

// A connection on which the leader had begun to send its rows has ended.
struct LostLeader {
  std::string why;
  bool is_silence = false;   // nothing was heard for the lease; else the connection ended
  bool was_in_sync = false;  // all that the leader told anybody is in this side's journal
};

// An attempt came to nothing.
struct MirrorTrouble {
  enum class Kind {
    kAway,      // `what` is a sentence: "connection refused (nothing listens there)"
    kStandsBy,  // it stands by itself; `what` is who leads as far as it knows, HOST:PORT, or empty
    kRefused,   // `what` completes "the leader at HOST:PORT …": versions, tokens, TLS, another
                // standby, something else at that port
    kOwnJournal,  // this side's can't be written: `what` says why
  };
  Kind kind = Kind::kAway;
  std::string what;
};

class MirrorClient {
 public:
  // Called from the io context, never from inside a call of this class, and not after stop().
  struct Handlers {
    std::function<void(const std::string& leader)> copying;  // it took this standby in
    std::function<void(const SyncedWith&)> in_sync;          // and that is kept, too
    std::function<void(const LostLeader&)> lost;             // each `copying` has one, but the last
    std::function<void(const MirrorTrouble&)> trouble;       // each that differs from the last one
  };

  // `file` was loaded. Begins at once, and tries for ever.
  MirrorClient(boost::asio::io_context& io, std::unique_ptr<journal::JournalFile> file,
               MirrorClientOptions options, Handlers handlers);
  ~MirrorClient();  // closes; no call follows
  MirrorClient(const MirrorClient&) = delete;
  MirrorClient& operator=(const MirrorClient&) = delete;

  // From now on nothing is taken from the leader. `done` is called once, from the io context, with
  // the journal; not where this object is destroyed before.
  void stop(std::function<void(MirroredJournal)> done);

  bool is_in_sync() const;

 private:
  class Impl;
  const std::shared_ptr<Impl> impl_;  // second owner: what is under way
};

}  // namespace ddprun::ha
