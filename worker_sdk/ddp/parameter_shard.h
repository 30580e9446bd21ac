// SPDX-License-Identifier: Apache-2.0
// One rank's part of the parameters of an asynchronous training, and who may read it when: stale
// synchronous parallel (docs/async.md). Pure: no I/O, clock, thread or lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace ddprun {

class ParameterShard {
 public:
  // `values`: of this part, at the beginning; outlives this object. No worker gets more than
  // `staleness` steps ahead of the slowest one.
  ParameterShard(std::span<float> values, int num_workers, std::uint64_t staleness);

  // `worker` has done one more step: `update`, divided by the number of workers, is added, and the
  // worker waits for the values. `update` stays until that wait has ended. With a staleness of 0
  // nothing is added before all have done the step. Then it is added in the order of the workers,
  // so that sums are the same in all runs. Returns the workers whose waits have ended: each has to
  // be given values() before the next call here.
  const std::vector<int>& push(int worker, std::span<const float> update);

  // `worker` does no more steps: nobody waits for it. It waits until all have left. Returns as
  // push().
  const std::vector<int>& leave(int worker);

  std::span<const float> values() const { return values_; }

  // Steps that a worker has done.
  std::uint64_t clock_of(int worker) const { return at(worker).clock; }
  // The worker with the fewest steps of those that have not left, the first of several; −1: all
  // have left.
  int slowest() const;
  // How many steps a worker is ahead of slowest(); 0 where all have left.
  std::uint64_t lead_of(int worker) const;

 private:
  struct Worker {
    std::uint64_t clock = 0;
    bool waits = false, has_left = false;
    std::span<const float> held{};  // staleness 0: not added yet
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
