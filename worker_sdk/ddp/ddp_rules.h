// SPDX-License-Identifier: Apache-2.0
// DistributedDataParallel's decisions that need no tensor. They tell whether two ranks have the
// same model, what ranks with uneven inputs do next, and which parameters a backward reaches. Pure:
// no I/O, clock or thread.
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
  std::string description;  // "Float [128, 9216]": whatever must agree
};

// As one text, to send: a line "NAME\tDESCRIPTION\n" for each, in the list's order. Names and
// descriptions hold no newline and no tab.
std::string encode_model(const std::vector<ModelEntry>& entries);

// The first difference, by place in the list, in a sentence that names `rank`, the entry and both
// sides. E.g. "rank 1: parameter fc1.weight is Float [64], on rank 0 it is Float [128]". Empty if
// the models are the same. Both texts are encode_model()'s: `mine` is rank `rank`'s. Throws nothing
// but std::bad_alloc.
std::string first_model_difference(int rank, std::string_view mine, std::string_view rank_zeros);

// The ranks send this to each other before each forward while their inputs are uneven.
enum class JoinCall : std::uint8_t {
  kShadow,    // out of inputs, and has shadowed a forward since
  kRanOut,    // out of inputs, since its last forward
  kLocal,     // a forward whose backward isn't averaged: no_sync, or without gradients
  kAveraged,  // a forward whose backward is
};

struct JoinRound {
  int num_active = 0;  // ranks that go forward; 0: all have run out
  // The rank whose buffers, or whose model, all take. It is the highest rank of those that go
  // forward, or, if none does, of those that were the last to.
  int source_rank = 0;
  bool averages = false;  // the coming backward does
  int first_out = -1;     // the lowest rank that is out of inputs; −1: none
};

// `calls` by rank. Throws Error(kInvalidArgument), the same on every rank, where some of those that
// go forward average and some don't.
JoinRound judge(std::span<const std::uint8_t> calls);

// Which parameters get gradients, by find_unused_parameters and static_graph.
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

  // The end of a message that names parameters without a gradient; not in kFindUnused.
  std::string advice() const;

  void end_iteration();

 private:
  // Constant after construction.
  const UsageMode mode_;
  const std::vector<std::string> names_;

  // kStatic, from the first iteration.
  bool learned_ = false;
  std::vector<std::size_t> expected_;  // gradients per iteration, by parameter

  // State of the current iteration.
  std::vector<std::size_t> unused_;  // kStatic: for good
  std::vector<std::uint8_t> used_;
  std::vector<std::size_t> counts_;      // gradients so far, by parameter
  std::vector<std::size_t> last_times_;  // the number of its last gradient among all
  std::size_t num_gradients_ = 0;
};

}  // namespace ddprun
