// SPDX-License-Identifier: Apache-2.0
// Parts shared by ddprun's own hooks.
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

// Returns whether it is float32 and not empty. Buckets of other dtypes are not compressed.
bool is_compressible(const TensorView& bucket);

// A hook's step for an uncompressed bucket: step 0 is the plain all-reduce, the others do nothing.
HookStep average_as_it_is(const GradBucket& bucket, int step, Communicator& communicator);

// Allocates one buffer per bucket, null if it is not compressible. Collective.
using Buffers = std::vector<std::unique_ptr<CommBuffer>>;
using BytesOf = std::function<std::size_t(const GradBucket&)>;
void allocate(std::span<const GradBucket> buckets, const BytesOf& bytes_of,
              Communicator& communicator, Buffers& buffers);
// The same, with room for every rank's part of `part_bytes`.
void allocate_gathered(std::span<const GradBucket> buckets, const BytesOf& part_bytes,
                       Communicator& communicator, Buffers& buffers);

// A buffer that holds the ranks' parts, of `part_bytes` each, in the order of ranks.
class Gathered {
 public:
  // Both outlive this object.
  Gathered(CommBuffer& buffer, std::size_t part_bytes, Communicator& communicator)
      : data_(static_cast<std::byte*>(buffer.data())),
        part_bytes_(part_bytes),
        communicator_(communicator) {}

  std::byte* part(int rank) const { return data_ + static_cast<std::size_t>(rank) * part_bytes_; }

  // Issues the all-gather, which sends this rank's part to all.
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
  // Makes errors of zero for the gradient, or for all of the bucket, unless they are there already.
  // Throws Error(kInvalidArgument) if a known one has another size: a hook serves one model.
  void prepare(const GradBucket& bucket);
  void prepare(const GradBucket::Gradient& gradient);

  // bucket += errors; a gradient without an error is unchanged.
  void add_to(const GradBucket& bucket) const;

  // errors = the bucket's present values; 0 for those that are not finite.
  void take_from(const GradBucket& bucket);

  // errors += gradient, except values that are not finite. A gradient without an error is ignored.
  void take_back(const GradBucket::Gradient& gradient);

  // Returns the error of a gradient that was prepared.
  float* of(const GradBucket::Gradient& gradient);

  // Appends "error.NAME" for each gradient, per rank.
  void append_state(std::vector<HookTensor>& state);

 private:
  struct Entry {
    std::string name;
    std::vector<std::int64_t> shape;
    std::vector<float> values;
  };
  std::map<std::size_t, Entry> entries_;  // by parameter
};

// A hook with error feedback. The first `start_iteration` iterations are averaged uncompressed:
// early gradients change faster than their kept errors are sent.
class FeedbackHook : public CommHook {
 public:
  void take_back(const GradBucket::Gradient& gradient) override {
    if (compresses_) errors_.take_back(gradient);  // otherwise no error was sent
  }

 protected:
  explicit FeedbackHook(std::uint64_t start_iteration) : start_iteration_(start_iteration) {}

  // Returns whether this iteration compresses. Every run() calls it first.
  bool compresses(const GradBucket& bucket, int step);

  // Returns "NAME.iterations" (int64).
  HookTensor iterations(const std::string& name);

  ErrorFeedback errors_;

 private:
  const std::uint64_t start_iteration_;
  std::int64_t iterations_ = 0;  // iterations done, also before a checkpoint
  bool compresses_ = false;      // the iteration under way compresses
};

}  // namespace ddprun::hooks

namespace ddprun {

// PowerSGD (Vogels, Karimireddy, Jaggi, NeurIPS 2019). Each gradient matrix travels as a product of
// two narrow ones; the rest is kept for the next iteration. It works as PyTorch's powerSGD_hook,
// with warm start and error feedback. A float32 gradient of two or more dimensions is treated as a
// matrix of shape[0] rows. M = gradient + error; P = orthogonal(mean(M Q)); Q = mean(Mᵀ P); average
// = P Qᵀ; error = M − P Qᵀ. The next iteration begins with orthogonal(Q). Gradients with fewer
// dimensions, gradients that would not become smaller, and buckets of other dtypes are averaged
// uncompressed. If a gradient is not finite, the average is NaN, and its error and Q begin anew.
// Memory of the CPU only. `rank` is the number of columns of the narrow matrices.
std::shared_ptr<CommHook> make_power_sgd_hook(int rank, std::uint64_t start_iteration);

}  // namespace ddprun
