// SPDX-License-Identifier: Apache-2.0
// The journal for the I/O thread: another thread writes the batches, all waiting ones in one
// commit. A disk that fails or hangs stops no job. The journal goes on in memory, logs that once,
// and writes the rest as soon as it can. If other ddprunds may take over the jobs (docs/ha.md),
// nothing goes on before it is kept.
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

// Thrown by BatchWriter::commit(): another process leads now, and this process' decisions don't
// count any more.
class Deposed : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Takes batches. It is a JournalFile, an EtcdJournal or a test's class. One thread at a time.
class BatchWriter {
 public:
  virtual ~BatchWriter() = default;
  // Commits the whole batch or nothing; throws std::exception. A batch that failed is tried again,
  // with more rows. An empty batch only checks whether this process is deposed.
  virtual void commit(const Batch& batch) = 0;
  // Does the same as commit(), for a batch that may take long. Between its parts it calls `others`,
  // which may pass a batch of other rows to `commit_now`: that one is kept before this one is.
  // `commit_now` returns false if it can't take it now. Only a shared journal calls this.
  using CommitNow = std::function<bool(const Batch& batch)>;
  using Others = std::function<void(const CommitNow& commit_now)>;
  virtual void commit_in_parts(const Batch& batch, const Others&) { commit(batch); }
  // Any thread. Makes a commit that is under way, and each later one, end soon by throwing.
  virtual void cancel() {}
  virtual std::string name() const = 0;
  // Returns why it can't be written at the start; empty: it can.
  virtual std::string trouble() const { return {}; }
};

struct JournalOptions {
  // Other ddprunds may take over. Each batch of commit(), also an empty one, waits until it is
  // kept, without a limit. Once this process is deposed, it waits for ever.
  bool is_shared = false;
  // Called once, on the I/O thread, when this process is deposed.
  std::function<void(const std::string& why)> deposed;
  // The limit of a commit with its wait. After it jobs go on without the journal; a shared journal
  // reports trouble().
  std::chrono::milliseconds commit_limit{2'000};
  // The extra time after commit_limit before the disk is blamed. A process that itself stood still
  // (SIGSTOP, a paused machine) may not have seen the disk's answer yet.
  std::chrono::milliseconds second_look{100};
  // The time between attempts to write to a disk that fails; it doubles with each attempt.
  std::chrono::milliseconds first_retry{1'000};
  std::chrono::milliseconds last_retry{60'000};
};

// Decisions don't wait for what may be large (kStore): values that workers have stored. Rows of one
// kind are no rows of the other.
enum class RowKind { kDecision, kStore };

// A disk that fails or hangs.
struct JournalTrouble {
  std::string what;
  Clock::time_point since{};
};

class Journal {
 public:
  // `post` makes a function run later on the I/O thread; the journal's threads call it.
  Journal(std::unique_ptr<BatchWriter> writer, std::function<void(std::function<void()>)> post,
          JournalOptions options = {});
  // Writes the waiting batches, without calls of `done`. A shared journal doesn't: nobody has seen
  // their effects. If the disk hangs for commit_limit in a write, the writer thread is abandoned.
  // The destructor takes 2 * commit_limit at most: one write may hang and end before the last one
  // hangs. The log says what is not kept.
  ~Journal();

  // Keeps the batch. Calls `done` on the I/O thread once all decisions up to this are kept, and all
  // rows of its kind, or if the disk fails or hangs. The calls of each kind come in order.
  void commit(Batch batch, std::function<void()> done, RowKind kind = RowKind::kDecision);

  // Set while jobs go on in memory or, with a shared journal, wait.
  std::optional<JournalTrouble> trouble() const;

  bool is_shared() const;

 private:
  class Shared;
  const std::shared_ptr<Shared> shared_;  // shared with the two threads
  std::thread writer_thread_, watcher_thread_;
};

// Holds back decided actions until the journal has kept the changes from which they follow. They
// are carried out strictly in the order of the decisions. I/O thread only.
class JournalGate {
 public:
  // `journal` must outlive this; nullptr: there is none, and nothing waits.
  explicit JournalGate(Journal* journal, RowKind kind = RowKind::kDecision)
      : journal_(journal), kind_(kind) {}

  // Returns whether actions that follow from `changes` must wait, and be passed to add(). They must
  // if these changes or earlier ones are not kept yet. With a shared journal all actions with
  // `says_something` wait: this process must first know that it still leads.
  bool must_wait(const Batch& changes, bool says_something) const;

  // Calls `carry_out` from the I/O context once `changes` and all earlier ones are kept. `owner`,
  // which contains this gate, is kept alive until then. Needs a journal.
  void add(Batch changes, std::function<void()> carry_out, std::shared_ptr<const void> owner);

  // Calls `done` right after the last added action, or at once if none waits.
  void when_kept(std::function<void()> done);

  bool empty() const { return waiting_.empty(); }

  // Drops waiting actions; no call follows.
  void stop();

 private:
  struct Waiting {
    std::function<void()> carry_out;
    std::vector<std::function<void()>> then;
  };

  void kept();

  Journal* const journal_;
  const RowKind kind_;
  std::deque<Waiting> waiting_;  // one per commit, in order
  bool stopped_ = false;
};

}  // namespace ddprun::journal
