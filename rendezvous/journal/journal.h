// SPDX-License-Identifier: Apache-2.0
// The journal as the io thread uses it: batches are written by a thread of its own, all that wait
// in one commit. A disk that fails stops no job: it goes on in memory, says so once, and what is
// missing on the disk is written as soon as it can be.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "common/log.h"
#include "rendezvous/journal/journal_file.h"

namespace ddprun::journal {

class Journal {
 public:
  // `post` runs a function on the io thread, later; it is called on the journal's.
  Journal(std::unique_ptr<JournalFile> file, std::function<void(std::function<void()>)> post);
  // Writes what waits, without calling anybody any more.
  ~Journal();
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  // `done` is called on the io thread, in the order of the calls: the batch, and all before it, are
  // kept, or the disk has failed.
  void commit(Batch batch, std::function<void()> done);

 private:
  struct Commit {
    Batch batch;
    std::function<void()> done;
  };

  void run();
  void write(std::vector<Commit> commits);
  void say(LogLevel level, std::string text);

  const std::unique_ptr<JournalFile> file_;
  const std::function<void(std::function<void()>)> post_;
  std::map<std::string, std::optional<std::string>> behind_;  // thread_ alone: not on disk yet
  bool failing_ = false;                                      // likewise

  std::mutex mutex_;
  std::condition_variable wakes_;
  std::vector<Commit> waiting_;  // under mutex_
  bool stopping_ = false;        // likewise
  std::thread thread_;
};

}  // namespace ddprun::journal
