// SPDX-License-Identifier: Apache-2.0
// The journal as the io thread uses it: a thread of its own writes batches, all that wait in one
// commit. A disk that fails or hangs stops no job. The journal goes on in memory, says so once, and
// writes the rest as soon as it can. If others may take over the jobs (docs/ha.md), nothing goes on
// that isn't kept.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "common/clock.h"
#include "rendezvous/journal/row.h"

namespace ddprun::journal {

// Thrown by BatchWriter::commit: others go on, and what this process decides counts no more.
class Deposed : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Takes batches: a JournalFile, or what a test puts in its place. One thread at a time.
class BatchWriter {
 public:
  virtual ~BatchWriter() = default;
  // All of it, or nothing; throws std::exception. A batch that failed is tried again, with more. An
  // empty batch only asks whether this process is Deposed.
  virtual void commit(const Batch& batch) = 0;
  // From any thread: a commit that is under way, and each later one, ends soon by throwing.
  virtual void cancel() {}
  virtual std::string name() const = 0;
  // The reason why it can't be written from the start; empty: it can.
  virtual std::string trouble() const { return {}; }
};

struct JournalOptions {
  // Others may take over. Each call of commit() waits until it is kept, an empty batch, too,
  // however long that takes. It waits for ever once this process is deposed.
  bool is_shared = false;
  // Called once, on the io thread.
  std::function<void(const std::string& why)> deposed;
  // For a commit with its wait. Then jobs go on without it; if it is shared, that is trouble.
  std::chrono::milliseconds commit_limit{2'000};
  // After it there is another look, before the disk is blamed. A process that has stood still
  // itself (SIGSTOP, a paused machine) may not have heard yet what there is to hear.
  std::chrono::milliseconds second_look{100};
  // Between the tries to write to a disk that fails; doubles with each.
  std::chrono::milliseconds first_retry{1'000};
  std::chrono::milliseconds last_retry{60'000};
};

// A disk that fails or hangs.
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
  // of it. A disk that hangs is left behind commit_limit after its write began, with its thread.
  // This thread waits 2 * commit_limit at most: one write hung and was done, and then the last one
  // hangs. A line of the log says what is not kept.
  ~Journal();
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  // Calls `done` on the io thread, in order: all up to this is kept, or the disk fails or hangs.
  void commit(Batch batch, std::function<void()> done);

  // Set while jobs go on in memory, or wait where it is shared.
  std::optional<JournalTrouble> trouble() const;

  bool is_shared() const;

 private:
  class Shared;
  const std::shared_ptr<Shared> shared_;  // second owners: the two threads
  std::thread writer_thread_, watcher_thread_;
};

// Actions that were decided, but wait: the journal must first keep the changes they follow from.
// They are carried out in the order of the decisions; nothing overtakes. io thread only.
class JournalGate {
 public:
  // `journal`: nullptr: none, and nothing has to wait; else it outlives this.
  explicit JournalGate(Journal* journal) : journal_(journal) {}

  // Whether actions that follow from `changes` have to wait, and are to be add()ed. True if these
  // changes or earlier ones are not kept yet. If others may take over, all that `says_something`
  // waits: it must first be known that nobody else decides by now.
  bool must_wait(const Batch& changes, bool says_something) const;

  // Calls `carry_out` from the io context, once `changes` and all that was added before are kept.
  // `owner`, of which this is a part, lives until then. Precondition: there is a journal.
  void add(Batch changes, std::function<void()> carry_out, std::shared_ptr<const void> owner);

  // Calls `done` at once where nothing waits, else right after the last of what was added is done.
  void when_kept(std::function<void()> done);

  bool empty() const { return waiting_.empty(); }

  // No call follows.
  void stop();

 private:
  struct Waiting {
    std::function<void()> carry_out;
    std::vector<std::function<void()>> then;
  };

  void kept();

  Journal* const journal_;
  std::deque<Waiting> waiting_;  // each for its commit
  bool stopped_ = false;
};

}  // namespace ddprun::journal
