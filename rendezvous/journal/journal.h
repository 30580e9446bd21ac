// SPDX-License-Identifier: Apache-2.0
// The journal as the io thread uses it: batches are written by a thread of its own, all that wait
// in one commit. A disk that fails or hangs stops no job: it goes on in memory, says so once, and
// what is missing on the disk is written as soon as it can be. Where others may take over what is
// kept there (docs/ha.md), nothing goes on that isn't kept.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>

#include "common/clock.h"
#include "rendezvous/journal/row.h"

namespace ddprun::journal {

// Thrown by BatchWriter::commit: others go on with what is kept there, and nothing that this
// process decides counts any more.
class Deposed : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Where batches go: a JournalFile, or what a test puts in its place. One thread at a time.
class BatchWriter {
 public:
  virtual ~BatchWriter() = default;
  // All of it, or nothing; throws std::exception. What failed is tried again, with more. An empty
  // batch only asks whether this process is Deposed.
  virtual void commit(const Batch& batch) = 0;
  // From any thread: a commit that is under way, and each later one, ends soon by throwing.
  virtual void cancel() {}
  virtual std::string name() const = 0;
  // What keeps it from being written from the start; empty: nothing.
  virtual std::string trouble() const { return {}; }
};

struct JournalOptions {
  // Others may take over: each call of commit() waits until it is kept, an empty batch, too,
  // however long that takes, and for ever once this process is deposed.
  bool is_shared = false;
  // Called once, on the io thread.
  std::function<void(const std::string& why)> deposed;
  // What a commit may take, its wait for its turn included. Then jobs go on without it; where it is
  // shared it only counts as trouble.
  std::chrono::milliseconds commit_limit{2'000};
  // After which it is looked again, before the disk is blamed: a process that has stood still
  // itself (SIGSTOP, a paused machine) may not have heard yet what there is to hear.
  std::chrono::milliseconds second_look{100};
  // Between the tries to write to a disk that fails; doubles with each.
  std::chrono::milliseconds first_retry{1'000};
  std::chrono::milliseconds last_retry{60'000};
};

// Of a disk that fails or hangs.
struct JournalTrouble {
  std::string what;
  Clock::time_point since{};
};

class Journal {
 public:
  // `post` runs a function on the io thread, later; it is called on the journal's threads.
  Journal(std::unique_ptr<BatchWriter> writer, std::function<void(std::function<void()>)> post,
          JournalOptions options = {});
  // Writes what waits, without calling anybody any more; not where it is shared: nobody has heard
  // of it. A disk that hangs is left behind commit_limit after its write began, with its thread:
  // this thread waits 2 * commit_limit at most, where one write hung and was done, and then the
  // last one hangs. A line of the log says what is not kept.
  ~Journal();
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  // `done` is called on the io thread, in the order of the calls: the batch, and all before it, are
  // kept, or the disk fails or hangs.
  void commit(Batch batch, std::function<void()> done);

  // Set while jobs go on in memory, or wait where it is shared.
  std::optional<JournalTrouble> trouble() const;

  bool is_shared() const;

 private:
  class Shared;
  const std::shared_ptr<Shared> shared_;  // second owners: the two threads
  std::thread writer_thread_, watcher_thread_;
};

}  // namespace ddprun::journal
