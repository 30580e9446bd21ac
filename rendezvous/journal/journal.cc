// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/journal/journal.h"

#include <chrono>
#include <exception>
#include <utility>

#include "common/error.h"
#include "common/quiet_thread.h"

namespace ddprun::journal {
namespace {
constexpr std::chrono::seconds kRetryInterval{1};
}

Journal::Journal(std::unique_ptr<JournalFile> file, std::function<void(std::function<void()>)> post)
    : file_(std::move(file)), post_(std::move(post)) {
  thread_ = start_quiet_thread("journal", [this] { run(); });
}

Journal::~Journal() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    for (Commit& commit : waiting_) commit.done = nullptr;
  }
  wakes_.notify_one();
  thread_.join();
}

void Journal::commit(Batch batch, std::function<void()> done) {
  {
    const std::lock_guard lock(mutex_);
    waiting_.push_back({std::move(batch), std::move(done)});
  }
  wakes_.notify_one();
}

void Journal::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    const auto awaited = [this] { return stopping_ || !waiting_.empty(); };
    if (behind_.empty()) {
      wakes_.wait(lock, awaited);
    } else {
      wakes_.wait_for(lock, kRetryInterval, awaited);
    }
    const bool last = stopping_;
    std::vector<Commit> commits = std::exchange(waiting_, {});
    lock.unlock();
    write(std::move(commits));
    lock.lock();
    if (last) return;
  }
}

void Journal::write(std::vector<Commit> commits) {
  for (Commit& commit : commits) {
    for (RowChange& row : commit.batch) behind_[row.key] = std::move(row.content);
  }
  try {
    if (!behind_.empty()) {
      Batch batch;
      for (const auto& [key, content] : behind_) batch.push_back({key, content});
      file_->commit(batch);
      behind_.clear();
    }
    if (std::exchange(failing_, false)) {
      say(LogLevel::kInfo, concat(file_->path().string(), " is written again, and up to date"));
    }
  } catch (const std::exception& error) {
    if (!std::exchange(failing_, true)) {
      say(LogLevel::kError,
          concat(error.what(),
                 "; jobs go on in memory: what is decided from now on is lost if this "
                 "ddprund ends before it can write there again"));
    }
  }
  for (Commit& commit : commits) {
    if (commit.done) post_(std::move(commit.done));
  }
}

void Journal::say(LogLevel level, std::string text) {
  post_([level, text = std::move(text)] { log_message(level, text); });
}

}  // namespace ddprun::journal
