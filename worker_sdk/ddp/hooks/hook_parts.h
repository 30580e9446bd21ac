// SPDX-License-Identifier: Apache-2.0
// Shared by the hooks that come with ddprun.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
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

// The part of this rank's gradients that compression left out, kept for the next iteration (Seide
// et al., "1-bit stochastic gradient descent", Interspeech 2014). It is kept by parameter, so that
// it outlives the rebuild of the buckets.
class ErrorFeedback {
 public:
  // Zeros for the gradient, or for all of the bucket, unless they are there already. Throws
  // Error(kInvalidArgument) where a known one has another size: a hook serves one model.
  void prepare(const GradBucket& bucket);
  void prepare(const GradBucket::Gradient& gradient);

  // bucket += errors; those of gradients without one are 0.
  void add_to(const GradBucket& bucket) const;

  // errors = what is in the bucket now; 0 for what is not finite.
  void take_from(const GradBucket& bucket);

  // errors += gradient, but for what is not finite. One without an error is left out.
  void take_back(const GradBucket::Gradient& gradient);

  // The error of a gradient that was prepared.
  float* of(const GradBucket::Gradient& gradient);

  // "error.NAME", per rank.
  void append_state(std::vector<HookTensor>& state);

 private:
  struct Entry {
    std::string name;
    std::vector<std::int64_t> shape;
    std::vector<float> values;
  };
  std::map<std::size_t, Entry> entries_;  // by parameter
};

// A hook with error feedback. The first `start_iteration` iterations are averaged as they are:
// early gradients change faster than what is kept of them comes to be sent.
class FeedbackHook : public CommHook {
 public:
  void take_back(const GradBucket::Gradient& gradient) override {
    if (compresses_) errors_.take_back(gradient);  // else nothing of the errors was sent
  }

 protected:
  explicit FeedbackHook(std::uint64_t start_iteration) : start_iteration_(start_iteration) {}

  // Whether this iteration compresses. Every run() asks it first.
  bool compresses(const GradBucket& bucket, int step);

  // "NAME.iterations" (int64).
  HookTensor iterations(const std::string& name);

  ErrorFeedback errors_;

 private:
  const std::uint64_t start_iteration_;
  std::int64_t iterations_ = 0;  // done, before a checkpoint too
  bool compresses_ = false;      // in the iteration under way
};

}  // namespace ddprun::hooks

namespace ddprun {

// PowerSGD (Vogels, Karimireddy, Jaggi, NeurIPS 2019). Each gradient matrix travels as a product of
// two narrow ones. The rest is kept for the next iteration. As PyTorch's powerSGD_hook, with warm
// start and error feedback. A float32 gradient of two or more dimensions is seen as a matrix of
// shape[0] rows. M = gradient + error; P = orthogonal(mean(M Q)); Q = mean(Mᵀ P); average = P Qᵀ;
// error = M − P Qᵀ. The next iteration begins with orthogonal(Q). Gradients with fewer dimensions,
// and those that it would not make smaller, are averaged as they are; so are buckets of other
// dtypes. If a gradient is not finite, the average is NaN, and its error and Q begin anew. Memory
// of the CPU only. `rank`: columns of the narrow matrices.
std::shared_ptr<CommHook> make_power_sgd_hook(int rank, std::uint64_t start_iteration);

}  // namespace ddprun
