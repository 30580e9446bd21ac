// SPDX-License-Identifier: Apache-2.0
// FlatOptimizer for DdpOptions::zero. Each rank updates its part of every bucket, and has only that
// part of the optimiser's state. Then the ranks send each other the new parameters. The results are
// FlatOptimizer's; docs/zero.md explains it. No torch header needed here.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "worker_sdk/ddp/bucket_shards.h"
#include "worker_sdk/torch/flat_optimizer.h"
#include "worker_sdk/torch/gradient_clipping.h"
#include "worker_sdk/torch/named_tensor.h"
#include "worker_sdk/torch/update_rule.h"

namespace ddprun {

class DdpBase;

// One thread at a time: the one that runs forward and backward. From construction on, the
// parameters' values lie in memory of this object. That memory outlives the object if a parameter
// does. Move, cast or replace parameters only before. After an error of the communicator parameters
// may be of two steps: leave the program.
class ShardedOptimizer : public FlatOptimizerBase {
 public:
  // Every rank gives the same groups, of parameters whose gradients `ddp` averages. Parameters in
  // no group stay as they are. `ddp` has DdpOptions::zero, must outlive this object and has no
  // other ShardedOptimizer. Error(kInvalidArgument) if this doesn't hold, and as FlatOptimizer.
  ShardedOptimizer(std::vector<ParameterGroup> groups, DdpBase& ddp);
  ~ShardedOptimizer();
  ShardedOptimizer(const ShardedOptimizer&) = delete;
  ShardedOptimizer& operator=(const ShardedOptimizer&) = delete;

  // Updates all parameters by the averages of the last backward; has no effect if there are none
  // since zero_grad(). Collective. Error(kInvalidArgument): a parameter was moved since
  // construction. Also the communicator's errors. `overflow`: as FlatOptimizer's, the same on all
  // ranks.
  void step(const at::Tensor& overflow = {});

  // Forgets all gradients.
  void zero_grad();

  // Returns this rank's part of the present averages, one tensor for each parameter that it has a
  // part of. Give them to GradScaler::unscale(), which asks the other ranks. Each rank's list
  // differs.
  std::vector<at::Tensor> gradients();

  // ddprun::clip_gradient_norm() over all ranks' parts together. All ranks get the same norm, which
  // is the one without ZeRO but for rounding. The order is p > 0 or infinity (nan then counts as
  // infinite), else Error(kInvalidArgument). Collective: one number is reduced.
  at::Tensor clip_gradient_norm(const ClipOptions& options);

  // Calls `use` with each tensor of the state that all ranks have together, in the form of
  // FlatOptimizer::state(). A tensor is valid within its call, so at most a bucket is in memory.
  // Collective; in the order of buckets.
  void for_each_state(const std::function<void(const NamedState&)>& use);

  // Returns the same as a list of copies on the CPU, in the groups' order, on every rank, for a
  // checkpoint. It takes the memory that ZeRO saves: drop it soon. Collective.
  std::vector<NamedState> state();

  // Takes this rank's part of what state() or FlatOptimizer::state() gave, of any number of ranks.
  // Error(kInvalidArgument), without effect: a tensor is missing, unknown, there twice or of
  // another shape.
  void load_state(const std::vector<NamedState>& state);

  // Returns the bytes of this rank's state, padding included.
  std::size_t state_bytes() const;

 private:
  struct Bucket {
    at::Tensor all;                  // every parameter's values, in the gradients' layout
    at::Tensor values, gradients;    // this rank's part
    at::Tensor states[kMaxStates];   // this rank's part; undefined: no rule here keeps as many
    std::vector<ShardPiece> pieces;  // the pieces of parameters that this rank's part has
    std::vector<Batch> batches;      // empty: not formed yet
    std::vector<std::size_t> items;  // the items of all ranks' parts
  };

  using StateByName = std::map<std::string, at::Tensor>;  // "fc1.weight.exp_avg"

  void add_items(std::vector<ParameterGroup> groups);
  void lay_out(std::size_t number);
  void check_in_place() const;
  void form_batches(Bucket& bucket);
  void update(Bucket& bucket, const at::Tensor& overflow);
  using FlatOptimizerBase::update;
  void settle_skipped();
  void check_state(const StateByName& given) const;
  at::Tensor place_in(const at::Tensor& flat, const Item& item) const;

  DdpBase& ddp_;
  std::vector<std::size_t> item_of_;  // by ddp_'s number of a parameter; kNoItem: in no group
  std::vector<Bucket> buckets_;
};

}  // namespace ddprun
