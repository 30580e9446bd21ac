// SPDX-License-Identifier: Apache-2.0
// DistributedDataParallel's decisions that need no tensor: whether two ranks have the same model,
// what ranks with uneven inputs do next, which parameters a backward reaches. Pure: no I/O, clock
// or thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ddprun {

// One parameter or buffer of a model.
struct ModelEntry {
  std::string name;         // "parameter fc1.weight"
  std::string description;  // "Float [128, 9216]": all that must agree
};

// Returns the entries as one text to send: a line "NAME\tDESCRIPTION\n" for each, in the list's
// order. Names and descriptions contain no newline and no tab.
std::string encode_model(const std::vector<ModelEntry>& entries);

// Returns the first difference, by place in the list, as a sentence that names `rank`, the entry
// and both sides. Example: "rank 1: parameter fc1.weight is Float [64], on rank 0 it is Float
// [128]". Empty if the models are the same. Both texts come from encode_model(); `mine` is that of
// rank `rank`. Throws only std::bad_alloc.
std::string first_model_difference(int rank, std::string_view mine, std::string_view rank_zeros);

// The message that ranks send to each other before each forward while their inputs are uneven.
enum class JoinCall : std::uint8_t {
  kShadow,    // out of inputs; it has already shadowed a forward
  kRanOut,    // out of inputs since its last forward
  kLocal,     // a forward whose backward isn't averaged: no_sync, or without gradients
  kAveraged,  // a forward whose backward is averaged
};

struct JoinRound {
  int num_active = 0;  // ranks that go forward; 0: all have run out
  // The rank whose buffers, or whose model, all take. It is the highest rank of those that go
  // forward; if none does, of those that did so last.
  int source_rank = 0;
  bool averages = false;  // the coming backward is averaged
  int first_out = -1;     // the lowest rank that is out of inputs; −1: none
};

// Decides what all ranks do; `calls` are in the order of ranks. Throws Error(kInvalidArgument), the
// same on every rank, if some of those that go forward average and some don't.
JoinRound judge(std::span<const std::uint8_t> calls);

// Which parameters get gradients, according to find_unused_parameters and static_graph.
enum class UsageMode {
  kAll,         // every parameter gets one gradient in each iteration
  kFindUnused,  // some get none; these are found anew in each iteration
  kStatic,      // the first iteration shows how many each gets; later ones must do the same
};

// An iteration is on_local_gradient() in backwards that aren't averaged; expect_unused();
// on_gradient() for each gradient of the averaged backward; then end_iteration().
class ParameterUsage {
 public:
  ParameterUsage(UsageMode mode, std::vector<std::string> names);

  UsageMode mode() const { return mode_; }

  // True in kStatic's first iteration. No gradient is complete before backward has ended, for each
  // may be added to again.
  bool learning() const { return mode_ == UsageMode::kStatic && !learned_; }

  // kFindUnused: sets the parameters that the coming backward will not reach. Others may also get
  // no gradient.
  void expect_unused(std::vector<std::size_t> indices) { unused_ = std::move(indices); }

  // Parameters that nothing waits for: the expected ones in kFindUnused, the learned ones in
  // kStatic.
  const std::vector<std::size_t>& unused() const { return unused_; }

  void on_local_gradient(std::size_t index) { used_[index] = 1; }

  // Says that a gradient was added to parameter `index`. True: it is complete.
  // Error(kInvalidArgument) in kStatic if the first iteration had fewer for it.
  bool on_gradient(std::size_t index);

  // Ends the learning. Returns the parameters that got gradients, in the order of their last ones.
  // unused() has the others.
  std::vector<std::size_t> learn();

  // By parameter: 1 if it got a gradient, also a local one, since the last end_iteration().
  const std::vector<std::uint8_t>& used() const { return used_; }

  // Returns the end of a message that names parameters without a gradient; not in kFindUnused.
  std::string advice() const;

  void end_iteration();

 private:
  // Constant after construction.
  const UsageMode mode_;
  const std::vector<std::string> names_;

  // Set by kStatic's first iteration.
  bool learned_ = false;
  std::vector<std::size_t> expected_;  // gradients per iteration, by parameter

  // State of the current iteration.
  std::vector<std::size_t> unused_;  // kStatic: never changes
  std::vector<std::uint8_t> used_;
  std::vector<std::size_t> counts_;      // gradients so far, by parameter
  std::vector<std::size_t> last_times_;  // the number of its last gradient among all
  std::size_t num_gradients_ = 0;
};

}  // namespace ddprun
