// SPDX-License-Identifier: Apache-2.0
// A daemon that is one of a pair: it leads, or mirrors the other one's journal and goes on with its
// jobs when that is gone (docs/ha-standby.md). Carries out what ha/pair_rules.h decides. io thread
// only.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/endpoint.h"
#include "common/log.h"
#include "common/unique_fd.h"
#include "rendezvous/daemon/daemon.h"
#include "rendezvous/daemon/term_keeper.h"
#include "rendezvous/ha/leader_rows.h"
#include "rendezvous/ha/mirror_client.h"
#include "rendezvous/ha/mirror_door.h"
#include "rendezvous/ha/mirror_server.h"
#include "rendezvous/ha/pair_rules.h"
#include "rendezvous/ha/peer_caller.h"
#include "rendezvous/journal/journal_file.h"
#include "rendezvous/membership/link_security.h"

namespace ddprun::rendezvous {

struct PairOptions {
  std::filesystem::path directory;  // --state-dir
  journal::Durability durability = journal::Durability::kProcess;
  Endpoint peer;          // the other one
  bool is_first = false;  // --standby; else --standby-of
  std::string name;       // HOST:PORT of this one, for people
  std::chrono::milliseconds lease{3'000};
  membership::LinkSecurity security;  // towards the other one
};

class Pair {
 public:
  // As Daemon's; calls the other one at once, and stands by until it is clear who leads. Throws
  // Error where the journal can't be used (journal_file.h).
  Pair(boost::asio::io_context& io, std::vector<UniqueFd> listeners, DaemonOptions options,
       PairOptions pair);
  ~Pair();  // closes every connection; no call follows
  Pair(const Pair&) = delete;
  Pair& operator=(const Pair&) = delete;

  const Daemon& daemon() const { return *daemon_; }
  // As Daemon's; `towards_peer` from the next call on.
  void set_security(PortSecurity security, membership::LinkSecurity towards_peer);
  // A standby goes on with the jobs of this one.
  bool is_mirrored() const { return role_ == Role::kLeads && is_in_sync_; }

  // Who leads hands over, who mirrors says that it leaves. `done` is called once, from the io
  // context, after 2 s at the latest; this object is to be destroyed then.
  void stop(std::function<void()> done);

 private:
  enum class Role {
    kStandsBy,  // has client_
    kBegins,    // its term is being kept
    kLeads,     // has server_
    kEnds,      // led a moment ago
  };
  using File = std::unique_ptr<journal::JournalFile>;

  ha::PairState own_state() const;
  PeerStatus peer_status() const;
  // Opens its journal, on any thread. Where rows of it are lost, the rest is a copy's from then on.
  std::function<File()> opener() const;
  void know(const journal::Content& content);

  void met(const ha::PairState& theirs, ha::Call call);
  void heard(const ha::PairState& theirs);
  void away(const ha::Away& away);
  void consider_alone();
  void say(LogLevel level, const std::string& what);

  void stand_by(File file);
  void stand_anew();
  void lost(const ha::LostLeader& lost);
  void mirror(const ha::PairState& theirs, ha::Call call);

  void lead(const std::string& why);
  void begin(File file, journal::Content content, const journal::Batch& before);
  void began(KeptTerm& kept);
  void lead_with(KeptTerm& kept);
  // In the term of that number, of num_led_. What was posted in one may be heard in the next.
  bool leads_in(std::uint64_t number) const { return role_ == Role::kLeads && num_led_ == number; }
  void lost_standby(const ha::LostStandby& lost);
  void go_over(bool own_disk);
  void reopen(bool begins);
  void reopened(bool begins, KeptTerm& its);
  void yield(const ha::PairState& theirs);

  void begin_in_time();
  void distrust_disk(std::chrono::milliseconds time);
  // Later, from the io context, unless this object has gone.
  void post(std::function<void()> call);
  std::function<void()> while_alive(std::function<void()> call);
  // Unless the timer is set anew, or this object has gone.
  void after(boost::asio::steady_timer& timer, std::chrono::milliseconds time,
             std::function<void()> call);

  boost::asio::io_context& io_;
  const PairOptions options_;
  std::shared_ptr<bool> life_ = std::make_shared<bool>();  // null: this object is going
  boost::asio::steady_timer alone_timer_, disk_timer_, begin_timer_, reopen_timer_, stop_timer_;
  TermKeeper term_keeper_;
  std::unique_ptr<Daemon> daemon_;
  std::shared_ptr<ha::MirrorDoor> door_;  // second owners: its connections
  std::unique_ptr<ha::PeerCaller> caller_;
  Role role_ = Role::kStandsBy;
  std::unique_ptr<ha::MirrorClient> client_;     // kStandsBy
  std::shared_ptr<ha::MirrorServer> server_;     // kLeads; second owner: the daemon
  ha::LeaderRows rows_;                          // of its journal
  std::uint64_t num_jobs_ = 0;                   // in them, not over; standing by
  std::uint64_t num_led_ = 0;                    // terms that this process has led in; the last one
  bool goes_on_ = false;                         // was begun by an earlier process
  bool is_in_sync_ = false;                      // with its standby, or its leader
  bool was_in_sync_ = false, is_yours_ = false;  // with the leader that it lost last
  bool distrusts_disk_ = false;                  // its journal can't be written
  bool is_copying_ = false;                      // a leader has taken it in
  bool is_stopping_ = false;
  bool answers_ = false;
  std::string yielded_to_;
  std::optional<ha::Away> away_;  // nullopt: its last call was answered
  Clock::time_point last_heard_ = Clock::now();
  std::string last_said_;  // of the pair
  std::string journal_path_;
  std::string copy_trouble_;  // standing by: why its journal takes no copy; empty: it does
};

}  // namespace ddprun::rendezvous
