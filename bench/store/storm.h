// SPDX-License-Identifier: Apache-2.0
// The store requests of a large job's workers when they start, however they reach the store. Each
// shakes hands, ADDs to the join counter, gets a 128-byte id and meets the others in a BARRIER.
// Rank 0 SETs the id, the others WAIT and GET. Aborts with a message if something fails.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

namespace ddprun::bench {

// The requests that a rank sends at once, and the size of the answer.
struct StormStep {
  std::vector<std::string> requests;
  std::string bytes;  // all of them
  std::size_t reply_bytes = 0;
};

class StormSteps {
 public:
  explicit StormSteps(int num_ranks);
  const std::vector<StormStep>& of(bool is_rank_0) const { return is_rank_0 ? first_ : others_; }

 private:
  std::vector<StormStep> first_, others_;
};

// One rank's progress through its steps.
class StormRank {
 public:
  explicit StormRank(const std::vector<StormStep>& steps)
      : steps_(&steps), missing_bytes_(steps.front().reply_bytes) {}

  // To be said now; not once it is done.
  const StormStep& step() const { return (*steps_)[index_]; }
  bool is_first_step() const { return index_ == 0; }
  bool is_done() const { return index_ == steps_->size(); }
  // So much of the answer came. True: that was all, the next step is due, or the rank is done.
  bool received(std::size_t bytes);

 private:
  const std::vector<StormStep>* steps_;  // outlive this
  std::size_t index_ = 0;
  std::size_t missing_bytes_;
};

// The time and the CPU time of the server, process `pid`, from the constructor on.
class StormClock {
 public:
  explicit StormClock(int pid);
  // One JSON line.
  void print(int num_ranks) const;

 private:
  const int pid_;
  const double cpu_before_;
  const std::chrono::steady_clock::time_point start_;
};

// Raises the limit of open files; aborts where it is below `num_files` after that.
void need_files(int num_files);

}  // namespace ddprun::bench
