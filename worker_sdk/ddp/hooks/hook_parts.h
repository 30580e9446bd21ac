// SPDX-License-Identifier: Apache-2.0
// What the hooks that come with ddprun have in common.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "worker_sdk/ddp/comm_hook.h"

namespace ddprun::hooks {

// Throws Error(kInvalidArgument) naming the first gradient that lies on a GPU.
void check_on_cpu(std::span<const GradBucket> buckets);

// float32, and not empty. Buckets of other dtypes travel as they are.
bool is_compressible(const TensorView& bucket);

// A hook's step for such a bucket: step 0 is the plain all-reduce, the others do nothing.
HookStep average_as_it_is(const GradBucket& bucket, int step, Communicator& communicator);

// One buffer per bucket, null where it is not compressible. Collective.
using Buffers = std::vector<std::unique_ptr<CommBuffer>>;
using BytesOf = std::function<std::size_t(const GradBucket&)>;
void allocate(std::span<const GradBucket> buckets, const BytesOf& bytes_of,
              Communicator& communicator, Buffers& buffers);
// …with room for every rank's part of `part_bytes`.
void allocate_gathered(std::span<const GradBucket> buckets, const BytesOf& part_bytes,
                       Communicator& communicator, Buffers& buffers);

// A buffer in which the ranks' parts, of `part_bytes` each, lie side by side.
class Gathered {
 public:
  // Both outlive this object.
  Gathered(CommBuffer& buffer, std::size_t part_bytes, Communicator& communicator)
      : data_(static_cast<std::byte*>(buffer.data())),
        part_bytes_(part_bytes),
        communicator_(communicator) {}

  std::byte* part(int rank) const { return data_ + static_cast<std::size_t>(rank) * part_bytes_; }

  // Issues the all-gather: this rank's part goes to all.
  HookStep start() const;

 private:
  std::byte* const data_;
  const std::size_t part_bytes_;
  Communicator& communicator_;
};

}  // namespace ddprun::hooks
