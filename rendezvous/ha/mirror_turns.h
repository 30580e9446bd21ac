// SPDX-License-Identifier: Apache-2.0
// Turns at a leader's file, for the threads that write it and read it: in the order in which they
// asked, so that neither commits nor a copy wait for more than one turn of the other's.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <stdexcept>

namespace ddprun::ha {

class MirrorTurns {
 public:
  // Any thread. Who waits for a turn, and each who asks for one later, gets an exception.
  void cancel() {
    const std::lock_guard lock(mutex_);
    cancelled_ = true;
    changed_.notify_all();
  }
  std::uint64_t num_waiting() {
    const std::lock_guard lock(mutex_);
    return next_ > now_ ? next_ - now_ - 1 : 0;
  }

 private:
  friend class MirrorTurn;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t next_ = 0;  // who asks now
  std::uint64_t now_ = 0;   // whose turn it is
  bool cancelled_ = false;
};

// One turn, as long as this lives.
class MirrorTurn {
 public:
  // Throws std::runtime_error once cancel() was called.
  explicit MirrorTurn(MirrorTurns& turns) : turns_(turns) {
    std::unique_lock lock(turns_.mutex_);
    const std::uint64_t number = turns_.next_++;
    turns_.changed_.wait(lock, [&] { return turns_.cancelled_ || turns_.now_ == number; });
    // After that nobody comes to a turn any more: the count need not be right.
    if (turns_.cancelled_) throw std::runtime_error("the mirror is being ended");
  }
  ~MirrorTurn() {
    const std::lock_guard lock(turns_.mutex_);
    ++turns_.now_;
    turns_.changed_.notify_all();
  }
  MirrorTurn(const MirrorTurn&) = delete;
  MirrorTurn& operator=(const MirrorTurn&) = delete;

 private:
  MirrorTurns& turns_;
};

}  // namespace ddprun::ha
