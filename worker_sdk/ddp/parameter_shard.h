// SPDX-License-Identifier: Apache-2.0
// One rank's part of the parameters of an asynchronous training, and the rule when a worker may
// read it: stale synchronous parallel (docs/async.md). Pure: no I/O, clock, thread or lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace ddprun {

class ParameterShard {
 public:
  // `values` are this part's first values, and outlive this object. No worker gets more than
  // `staleness` steps ahead of the slowest one.
  ParameterShard(std::span<float> values, int num_workers, std::uint64_t staleness);

  // Says that `worker` has done one more step. Adds `update`, divided by the number of workers; the
  // worker then waits for the values. `update` must stay valid until that wait has ended. With a
  // staleness of 0 updates are added only when all workers have done the step. They are added in
  // the order of the workers, so that sums are the same in all runs. Returns the workers whose
  // waits have ended: give each of them values() before the next call.
  const std::vector<int>& push(int worker, std::span<const float> update);

  // Says that `worker` does no more steps, so nobody waits for it. It waits until all have left.
  // Returns the same as push().
  const std::vector<int>& leave(int worker);

  std::span<const float> values() const { return values_; }

  // Returns the steps that a worker has done.
  std::uint64_t clock_of(int worker) const { return at(worker).clock; }
  // Returns the worker with the fewest steps among those that have not left, the first of several;
  // −1: all have left.
  int slowest() const;
  // Returns how many steps a worker is ahead of slowest(); 0 if all have left.
  std::uint64_t lead_of(int worker) const;

 private:
  struct Worker {
    std::uint64_t clock = 0;
    bool waits = false, has_left = false;
    std::span<const float> held{};  // staleness 0: its update, not added yet
  };

  Worker& at(int worker) { return workers_.at(static_cast<std::size_t>(worker)); }
  const Worker& at(int worker) const { return workers_.at(static_cast<std::size_t>(worker)); }
  void add(std::span<const float> update);
  void add_held();
  const std::vector<int>& release();

  const std::span<float> values_;
  const std::uint64_t staleness_;
  std::vector<Worker> workers_;
  std::vector<int> released_;
};

}  // namespace ddprun
