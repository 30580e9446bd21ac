// SPDX-License-Identifier: Apache-2.0
// PowerSGD (Vogels, Karimireddy, Jaggi, NeurIPS 2019): each gradient matrix travels as a product of
// two narrow ones, and what that leaves out is kept for the next iteration.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "worker_sdk/ddp/comm_hook.h"
#include "worker_sdk/ddp/hooks/error_feedback.h"
#include "worker_sdk/ddp/hooks/low_rank.h"

namespace ddprun {

struct PowerSgdOptions {
  int rank = 1;  // columns of the narrow matrices
  // Iterations with the plain all-reduce before: early gradients are no good to leave out from.
  std::uint64_t start_iteration = 10;
  // A matrix is compressed only where that makes it more than so many times smaller.
  double min_compression_rate = 2;
  std::uint64_t seed = 0;  // of the first Q; the same on all ranks
};

// As PyTorch's powerSGD_hook, with warm start and error feedback. Per float32 gradient of two or
// more dimensions, seen as a matrix of shape[0] rows: M = gradient + error; P = orthogonal(mean(M
// Q)); Q = mean(Mᵀ P); average = P Qᵀ; error = M − P Qᵀ. The next iteration begins with
// orthogonal(Q). Gradients with fewer dimensions, and those that it would not make smaller, are
// averaged as they are; so are buckets of other dtypes. Where a gradient is not finite the average
// is NaN, and its error and Q begin anew. Memory of the CPU only.
class PowerSgdHook : public CommHook {
 public:
  explicit PowerSgdHook(const PowerSgdOptions& options);

  void prepare(std::span<const GradBucket> buckets, Communicator& communicator) override;
  int num_steps() const override { return 2; }
  HookStep run(const GradBucket& bucket, int step, Communicator& communicator) override;
  void take_back(const GradBucket::Gradient& gradient) override {
    if (compresses_) errors_.take_back(gradient);  // else nothing of the errors was sent
  }

  // "powersgd.iterations" (int64), "powersgd.q.NAME" ([rank, columns], the same on all ranks) and
  // "error.NAME".
  std::vector<HookTensor> state() override;

 private:
  struct Matrix {
    std::string name;
    hooks::MatrixSize size;
    std::vector<float> q;
  };
  // What a gradient of a bucket is, and where it lies in the bucket's buffers, in elements.
  struct Place {
    GradBucket::Gradient gradient;
    Matrix* matrix = nullptr;  // null: it travels as it is
    std::size_t p_begin = 0;   // or where it lies itself
    std::size_t q_begin = 0;
  };
  struct Plan {
    std::vector<Place> places;
    std::size_t p_count = 0, q_count = 0;
    std::unique_ptr<CommBuffer> p_buffer, q_buffer;
  };

  Matrix* matrix_of(const GradBucket::Gradient& gradient);
  Plan make_plan(const GradBucket& bucket, Communicator& communicator);
  void fill_randomly(std::size_t parameter, std::size_t column, float* values,
                     std::size_t count) const;
  void begin_anew(std::size_t parameter, Matrix& matrix);
  HookStep send_p(const GradBucket& bucket, Plan& plan, Communicator& communicator);
  HookStep send_q(Plan& plan, Communicator& communicator);
  void decompress(Plan& plan);
  void decompress(const Place& place, const float* p, const float* q);

  // Constant after construction.
  const PowerSgdOptions options_;

  std::map<std::size_t, Matrix> matrices_;  // by parameter
  hooks::ErrorFeedback errors_;
  std::vector<Plan> plans_;      // by bucket
  std::int64_t iterations_ = 0;  // done, before a checkpoint too
  bool compresses_ = false;      // in the iteration under way
  std::vector<float> row_;       // scratch
};

}  // namespace ddprun
