// SPDX-License-Identifier: Apache-2.0
// Both ends of mirrors in one process, over real sockets: leaders with journals in memory or in
// files, standbys, and between them a relay that knows where frames end.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/error.h"
#include "common/log.h"
#include "rendezvous/ha/mirror_client.h"
#include "rendezvous/ha/mirror_door.h"
#include "rendezvous/ha/mirror_server.h"
#include "rendezvous/ha/peer_caller.h"
#include "rendezvous/journal/journal.h"
#include "rendezvous/journal/row.h"
#include "tests/rendezvous/ha/upgrading_port.h"
#include "tests/support/catch.h"
#include "tests/support/temp_directory.h"

namespace ddprun::ha::testing {

using namespace std::chrono_literals;

inline constexpr char kTerm[] = "0123456789abcdef0123456789abcdef";

// What a standby of `Leader` is told.
inline SyncedWith synced_with_leader() {
  SyncedWith synced;
  synced.term.id = kTerm;
  synced.term.number = 4;
  synced.leader = "a:29400";
  synced.line.emplace_back(kTerm);
  return synced;
}

// Runs `io` until `done()`, or for 20 s; whether it was done.
template <typename Done>
bool run_until(boost::asio::io_context& io, Done done, std::chrono::milliseconds limit = 20s) {
  const Deadline deadline = Deadline::after(limit);
  while (!done() && !deadline.expired()) {
    io.restart();
    io.run_one_for(10ms);
  }
  return done();
}

// A leader's journal in memory. Any thread.
class Shelf {
 public:
  void commit(const journal::Batch& batch) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !hangs_; });
    if (fails_) throw Error(ErrorCode::kSystem, "can't write the shelf: it is full");
    journal::apply_batch(batch, rows_);
  }
  journal::Rows rows() {
    const std::lock_guard lock(mutex_);
    return rows_;
  }
  // Without leader_rows.h's.
  journal::Rows job_rows() {
    journal::Rows rows = this->rows();
    std::erase_if(rows, [](const auto& row) { return is_leader_row(row.first); });
    return rows;
  }
  void set_fails(bool fails) {
    const std::lock_guard lock(mutex_);
    fails_ = fails;
  }
  void set_hangs(bool hangs) {
    const std::lock_guard lock(mutex_);
    hangs_ = hangs;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  journal::Rows rows_;
  bool fails_ = false, hangs_ = false;
};

class ShelfFile : public journal::RowFile {
 public:
  explicit ShelfFile(std::shared_ptr<Shelf> shelf) : shelf_(std::move(shelf)) {}
  void commit(const journal::Batch& batch) override { shelf_->commit(batch); }
  std::string name() const override { return "the shelf"; }
  journal::Rows read_after(const std::string& key, std::size_t max_bytes) override {
    const journal::Rows all = shelf_->rows();
    journal::Rows rows;
    std::size_t num_bytes = 0;
    for (auto row = all.upper_bound(key); row != all.end() && num_bytes < max_bytes; ++row) {
      num_bytes += row->first.size() + row->second.size();
      rows.insert(*row);
    }
    return rows;
  }
  std::optional<std::string> read(const std::string& key) override {
    const journal::Rows all = shelf_->rows();
    const auto row = all.find(key);
    if (row == all.end()) return std::nullopt;
    return row->second;
  }

 private:
  const std::shared_ptr<Shelf> shelf_;  // second owner: the test
};

struct LeaderOptions {
  std::string name = "a:29400";
  std::size_t page_bytes = std::size_t{1} << 20;
  std::chrono::milliseconds silence = 10s, ack = 10s, catch_up = 60s, file = 10s;
};

// Its port, its journal, its end of the mirror.
class Leader {
 public:
  Leader(boost::asio::io_context& io, std::unique_ptr<journal::RowFile> file,
         const LeaderOptions& options = {});
  Leader(boost::asio::io_context& io, const std::shared_ptr<Shelf>& shelf,
         const LeaderOptions& options = {})
      : Leader(io, std::make_unique<ShelfFile>(shelf), options) {}
  ~Leader() { stop(); }
  void stop() {
    port_->close();
    server->stop();
    journal.reset();
  }
  // As a daemon that is ended: what waits is kept, then the standby has the jobs.
  void hand_over();

  std::uint16_t port() const { return port_->port(); }
  // Number `number` of what is said: once the batch is kept.
  void commit(journal::Batch batch, int number) {
    journal->commit(std::move(batch), [this, number] { said.push_back(number); });
  }
  bool has_said(int number) const { return !said.empty() && said.back() >= number; }

  std::shared_ptr<MirrorServer> server;
  std::shared_ptr<MirrorDoor> door;
  std::vector<PairState> met;
  std::unique_ptr<journal::Journal> journal;
  std::vector<int> said;
  std::vector<std::string> mirrored_by, deposed;
  std::vector<LostStandby> standbys_lost;

 private:
  boost::asio::io_context& io_;
  std::unique_ptr<UpgradingPort> port_;
};

// A standby with a journal in a directory of its own, that mirrors whoever leads.
class Standby {
 public:
  Standby(boost::asio::io_context& io, std::uint16_t port, std::string name = "b:29400",
          std::chrono::milliseconds lease = 10s)
      : io_(io), name_(std::move(name)), lease_(lease) {
    start(port);
  }

  // Again, with the journal that it has.
  void start(std::uint16_t port);

  // What it has when it takes nothing any more.
  MirroredJournal stop();
  void stop_later();
  // And it is the leader's no more.
  void leave();

  // What it was told so far.
  void forget_the_past() {
    copying.clear();
    in_sync.clear();
    lost.clear();
    troubles.clear();
  }

  static journal::Rows job_rows(const MirroredJournal& kept) {
    journal::Rows rows = kept.content.rows;
    std::erase_if(rows, [](const auto& row) { return is_leader_row(row.first); });
    return rows;
  }

  // With which leader these rows say that they are in sync.
  static std::optional<SyncedWith> synced_of(const MirroredJournal& kept) {
    const auto row = kept.content.rows.find(kSyncedRow);
    if (row == kept.content.rows.end()) return std::nullopt;
    return decode_synced_row(row->second);
  }

  test::TempDirectory directory;
  std::unique_ptr<MirrorClient> client;
  std::unique_ptr<PeerCaller> caller;
  std::optional<MirroredJournal> kept;
  bool stops_when_lost = false;
  TermLine given_up;
  std::vector<std::string> copying;
  std::vector<SyncedWith> in_sync;
  std::vector<LostLeader> lost;
  std::vector<std::string> troubles;  // its own journal's
  std::vector<Away> aways;

 private:
  void call(std::uint16_t port);

  boost::asio::io_context& io_;
  const std::string name_;
  const std::chrono::milliseconds lease_;
};

}  // namespace ddprun::ha::testing
