// SPDX-License-Identifier: Apache-2.0
// Shared by all backends: the ranks of a communicator that was split from another one, and the
// rules for buffers of all_gather and reduce_scatter. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/operation_facts.h"
#include "worker_sdk/core/communicator.h"

namespace ddprun {

struct RankGroup {
  std::string name;        // empty: no group, but all ranks of the job
  std::vector<int> ranks;  // the job's ranks, in the group's order; empty: no group

  // Returns "group tp (its ranks 0, 1 are the job's 4, 5): "; a long list is cut. Empty for no
  // group.
  std::string prefix() const;

  // Returns the prefix of its keys: split_key(), and its first rank.
  std::string key(const std::string& parent_prefix, int count) const;
};

// Returns 0 … size − 1.
std::vector<int> all_ranks(int size);

// Returns the prefix of a split's keys, new for each split of that name; `count` were made before.
// It is the same on all ranks of the communicator that is split.
std::string split_key(const std::string& parent_prefix, const std::string& name, int count);

// Returns the group that `rank` asks for in `parent`, a communicator of `size` ranks. `place`
// becomes its rank in the group. Throws Error(kInvalidArgument): a rank that doesn't exist or is
// there twice, `rank` not among them, no name.
RankGroup make_group(const RankGroup& parent, int rank, int size, const std::vector<int>& ranks,
                     const SplitOptions& options, int* place);

// Checks the buffers of all_gather and reduce_scatter. `part` has one rank's elements, `whole`
// those of all `size` ranks in rank order. Returns the problem: types or counts that don't fit, or
// buffers that overlap otherwise than in place (`part` is the part of `rank` in `whole`). Empty:
// there is none.
std::string parts_problem(const TensorView& part, const TensorView& whole, int rank, int size);

// Returns what is wrong with this reduction. Empty: nothing.
std::string reduction_problem(DType dtype, ReduceOp op);

// Returns the call as it is recorded, as operation `sequence` of communicator `communicator`.
OperationFacts facts_of(const CollectiveCall& call, std::uint32_t communicator,
                        std::uint64_t sequence);

WorkPtr completed_work();

}  // namespace ddprun
