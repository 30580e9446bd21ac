// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/host/start_watch.h"

#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <sstream>

#include "common/log.h"
#include "rendezvous/store/store_timeout.h"
#include "worker_sdk/core/host/bootstrap.h"

namespace ddprun::host {
namespace {

// Bounds how late a failure on another node is seen; a few requests a second and node.
constexpr auto kAskInterval = std::chrono::milliseconds{250};
// For requests that need no waiting in the store.
constexpr auto kStoreTime = std::chrono::seconds{5};

FailureRecord record_of(FailureKind kind, int rank, const std::string& text) {
  FailureRecord record{.kind = kind, .rank = rank, .text = {}};
  std::memcpy(record.text, text.data(), std::min(text.size(), sizeof record.text - 1));
  return record;
}

std::string encode(const FailureRecord& record) {
  return concat(static_cast<std::uint32_t>(record.kind), " ", record.rank, " ", record.text);
}

FailureRecord decode(const std::string& note) {
  std::istringstream in(note);
  std::uint32_t kind = 0;
  int rank = -1;
  std::string text;
  in >> kind >> rank;
  in.get();
  std::getline(in, text, '\0');
  return record_of(static_cast<FailureKind>(kind), rank, text);
}

Error error_of(const FailureRecord& record) {
  const char* const what = record.kind == FailureKind::kRankLost ? " was lost" : " gave up";
  return {ErrorCode::kPeerLost,
          concat("rank ", record.rank, what, " during start of the communicator: ", record.text)};
}

}  // namespace

std::uint64_t pid_namespace() {
  struct stat info {};
  return ::stat("/proc/self/ns/pid", &info) == 0 ? static_cast<std::uint64_t>(info.st_ino) : 0;
}

UniqueFd open_pidfd(int pid) {
  return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
}

StartWatch::StartWatch(store::Store& store, const HostCommunicatorOptions& options)
    : store_(store), rank_(options.rank), key_(options.key_prefix + "host/failure") {}

// A pid that has been given away since names another process: that one's end is a late proof of
// what is true anyway.
void StartWatch::watch_node(const std::vector<PeerRecord>& records, const Topology& topology) {
  asks_store_ = topology.num_nodes() > 1 && topology.local_index() == 0;
  const std::uint64_t own_namespace = pid_namespace();
  for (const int rank : topology.local_ranks()) {
    const PeerRecord& record = records[static_cast<std::size_t>(rank)];
    if (rank == rank_ || record.pid <= 0 || record.pid_namespace != own_namespace) continue;
    UniqueFd process = open_pidfd(record.pid);
    if (!process && errno == ESRCH) end_by(FailureKind::kRankLost, rank, "its process ended");
    if (!process) continue;
    polls_.push_back({.fd = process.get(), .events = POLLIN, .revents = 0});
    rank_of_.push_back(rank);
    processes_.push_back(std::move(process));
  }
}

void StartWatch::look() {
  if (::poll(polls_.data(), polls_.size(), 0) > 0) {
    for (std::size_t i = 0; i < polls_.size(); ++i) {
      if (polls_[i].revents == 0) continue;
      end_by(FailureKind::kRankLost, rank_of_[i], "its process ended");
    }
  }
  if (asks_store_ && Clock::now() >= next_ask_) ask_store();
}

void StartWatch::ask_store() {
  next_ask_ = Clock::now() + kAskInterval;
  std::string note;
  try {
    const store::StoreTimeout limit(store_, kStoreTime);
    if (!store_.check({key_})) return;
    note = store_.get(key_);
  } catch (const Error& error) {
    log_debug("rank ", rank_, ": the store is silent: ", error.what());
    asks_store_ = false;
    return;
  }
  const FailureRecord record = decode(note);
  end_by(record.kind, record.rank, record.text);
}

Deadline StartWatch::next_look(Deadline deadline) const {
  return asks_store_ ? Deadline(std::min(deadline.at(), next_ask_)) : deadline;
}

bool StartWatch::wait_ready(int fd, short events, Deadline deadline) {
  std::vector<pollfd> all = polls_;
  all.push_back({.fd = fd, .events = events, .revents = 0});
  for (;;) {
    const int ready = ::poll(all.data(), all.size(), next_look(deadline).poll_timeout_ms());
    if (ready > 0 && all.back().revents != 0) return true;
    look();
    if (deadline.expired()) return false;
  }
}

void StartWatch::connection_ended(int rank, const std::string& how) {
  next_ask_ = {};
  look();
  end_by(FailureKind::kRankLost, rank, how);
}

void StartWatch::end_by(FailureKind kind, int rank, const std::string& how) {
  found_ = record_of(kind, rank, how);
  if (group_) group_->post_failure(kind, rank, how);
  throw error_of(*found_);
}

void StartWatch::end_with(const Error& error) {
  FailureRecord own = record_of(FailureKind::kAborted, rank_, error.what());
  if (found_) own = *found_;
  const bool others_know = group_ && group_->failed();
  if (others_know && !found_) own = group_->failure();
  if (group_ && !others_know) group_->post_failure(own.kind, own.rank, own.text);
  // The others' deadlines pass at about the same time: each says itself whom it missed.
  if (error.code() == ErrorCode::kTimeout) throw Error(error);
  std::string first = encode(own);
  try {
    const store::StoreTimeout limit(store_, kStoreTime);
    first = store_.compare_set(key_, "", first);
  } catch (const Error& lost) {
    log_debug("rank ", rank_, ": could not tell the other ranks: ", lost.what());
  }
  if (error.code() != ErrorCode::kPeerLost) throw Error(error);
  throw error_of(decode(first));
}

}  // namespace ddprun::host
