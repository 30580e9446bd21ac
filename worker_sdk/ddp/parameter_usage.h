// SPDX-License-Identifier: Apache-2.0
// Which parameters each backward reaches, and how often: what find_unused_parameters and
// static_graph must know. Pure: no I/O, clock or thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace ddprun {

enum class UsageMode {
  kAll,         // every parameter gets one gradient in each iteration
  kFindUnused,  // some get none; which is found anew in each iteration
  kStatic,      // the first iteration tells which get how many; all later ones do the same
};

// An iteration: on_local_gradient() in backwards that aren't averaged; expect_unused();
// on_gradient() for each gradient of the one that is; then end_iteration().
class ParameterUsage {
 public:
  ParameterUsage(UsageMode mode, std::vector<std::string> names);

  UsageMode mode() const { return mode_; }

  // True in kStatic's first iteration: no gradient is complete before backward has ended, for any
  // may be added to once more.
  bool learning() const { return mode_ == UsageMode::kStatic && !learned_; }

  // kFindUnused: parameters that the coming backward will not reach. More may get no gradient.
  void expect_unused(std::vector<std::size_t> indices) { unused_ = std::move(indices); }

  // Parameters that need no waiting for: as expected in kFindUnused, as learned in kStatic.
  const std::vector<std::size_t>& unused() const { return unused_; }

  void on_local_gradient(std::size_t index) { used_[index] = 1; }

  // A gradient was added to parameter `index`. True: it is complete. Error(kInvalidArgument) in
  // kStatic where the first iteration had fewer for it.
  bool on_gradient(std::size_t index);

  // Ends the learning: the parameters that got gradients, in the order of their last ones. unused()
  // are the others.
  std::vector<std::size_t> learn();

  // By parameter: 1 where it got a gradient since the last end_iteration(), be it a local one.
  const std::vector<std::uint8_t>& used() const { return used_; }

  // What a message ends with that names parameters without a gradient; not in kFindUnused.
  std::string advice() const;

  void end_iteration();

 private:
  // Constant after construction.
  const UsageMode mode_;
  const std::vector<std::string> names_;

  // kStatic, from the first iteration.
  bool learned_ = false;
  std::vector<std::size_t> expected_;  // gradients per iteration, by parameter

  // Of the iteration under way.
  std::vector<std::size_t> unused_;  // kStatic: for good
  std::vector<std::uint8_t> used_;
  std::vector<std::size_t> counts_;      // gradients so far, by parameter
  std::vector<std::size_t> last_times_;  // the number of its last gradient among all
  std::size_t num_gradients_ = 0;
};

}  // namespace ddprun
