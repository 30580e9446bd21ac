// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>
#include <map>
#include <random>
#include <vector>

#include "common/check.h"
#include "worker_sdk/ddp/hooks/hook_kernels.h"
#include "worker_sdk/ddp/hooks/hook_parts.h"

namespace ddprun {
namespace {

// A matrix is compressed only if that makes it more than this many times smaller.
constexpr double kMinCompressionRate = 2;
constexpr std::uint64_t kSeed = 0;  // for the first Q; the same on all ranks

float* floats_of(CommBuffer& buffer) { return static_cast<float*>(buffer.data()); }

HookStep start(CommBuffer& buffer, std::size_t count, Communicator& communicator) {
  const TensorView view{.data = buffer.data(), .count = count};
  return {communicator.all_reduce(view, ReduceOp::kAverage, {.async = true}), view.size_bytes()};
}

class PowerSgdHook : public hooks::FeedbackHook {
 public:
  PowerSgdHook(int rank, std::uint64_t start_iteration)
      : FeedbackHook(start_iteration), rank_(rank) {
    DDPRUN_CHECK(rank > 0);
  }

  void prepare(std::span<const GradBucket> buckets, Communicator& communicator) override {
    hooks::check_on_cpu(buckets);
    plans_.clear();
    for (const GradBucket& bucket : buckets) {
      plans_.push_back(hooks::is_compressible(bucket.view) ? make_plan(bucket, communicator)
                                                           : Plan());
    }
  }

  int num_steps() const override { return 2; }

  HookStep run(const GradBucket& bucket, int step, Communicator& communicator) override {
    Plan& plan = plans_[bucket.index];
    if (!compresses(bucket, step) || !plan.p_buffer) {
      return hooks::average_as_it_is(bucket, step, communicator);
    }
    if (step == 0) return send_p(bucket, plan, communicator);
    if (step == 1) return send_q(plan, communicator);
    decompress(plan);
    return {};
  }

  // Returns "powersgd.iterations", "powersgd.q.NAME" ([rank, columns], the same on all ranks) and
  // "error.NAME".
  std::vector<HookTensor> state() override {
    std::vector<HookTensor> state{iterations("powersgd")};
    for (auto& [parameter, matrix] : matrices_) {
      state.push_back({.name = "powersgd.q." + matrix.name,
                       .shape = {static_cast<std::int64_t>(matrix.size.rank),
                                 static_cast<std::int64_t>(matrix.size.columns)},
                       .view = {.data = matrix.q.data(), .count = matrix.q.size()}});
    }
    errors_.append_state(state);
    return state;
  }

 private:
  struct Matrix {
    std::string name;
    hooks::MatrixSize size;
    std::vector<float> q;
  };
  // A gradient of a bucket, and its offsets in the bucket's buffers, in elements.
  struct Place {
    GradBucket::Gradient gradient;
    Matrix* matrix = nullptr;  // null: it is sent uncompressed
    std::size_t p_begin = 0;   // or where the uncompressed gradient lies
    std::size_t q_begin = 0;
  };
  struct Plan {
    std::vector<Place> places;
    std::size_t p_count = 0, q_count = 0;
    std::unique_ptr<CommBuffer> p_buffer, q_buffer;
  };

  // Returns null if compression is not worth it.
  Matrix* matrix_of(const GradBucket::Gradient& gradient) {
    if (gradient.shape.size() < 2 || gradient.view.count == 0) return nullptr;
    const auto rows = static_cast<std::size_t>(gradient.shape.front());
    const std::size_t columns = gradient.view.count / rows;
    const std::size_t rank = std::min({rows, columns, static_cast<std::size_t>(rank_)});
    const auto compressed = static_cast<double>((rows + columns) * rank);
    if (compressed * kMinCompressionRate >= static_cast<double>(gradient.view.count)) {
      return nullptr;
    }
    const auto [place, is_new] = matrices_.try_emplace(gradient.parameter);
    Matrix& matrix = place->second;
    if (is_new) {
      matrix = {.name = gradient.name,
                .size = {.rows = rows, .columns = columns, .rank = rank},
                .q = std::vector<float>(columns * rank)};
      begin_anew(gradient.parameter, matrix);
    }
    errors_.prepare(gradient);  // throws for another model
    return &matrix;
  }

  void fill_randomly(std::size_t parameter, std::size_t column, float* values,
                     std::size_t count) const {
    std::seed_seq seeds{kSeed, static_cast<std::uint64_t>(parameter),
                        static_cast<std::uint64_t>(column)};
    std::mt19937 generator(seeds);
    // Only the direction matters, not the distribution: values are uniform in (−1, 1).
    for (std::size_t i = 0; i < count; ++i) {
      values[i] = (static_cast<float>(generator() >> 8) + 0.5F) * 0x1p-23F - 1;
    }
  }

  void begin_anew(std::size_t parameter, Matrix& matrix) {
    const std::size_t columns = matrix.size.columns;
    for (std::size_t k = 0; k < matrix.size.rank; ++k) {
      fill_randomly(parameter, k, matrix.q.data() + k * columns, columns);
    }
  }

  Plan make_plan(const GradBucket& bucket, Communicator& communicator) {
    Plan plan;
    for (const GradBucket::Gradient& gradient : bucket.gradients) {
      Place place{.gradient = gradient, .p_begin = plan.p_count, .q_begin = plan.q_count};
      place.matrix = matrix_of(gradient);
      plan.p_count += place.matrix ? place.matrix->size.p_count() : gradient.view.count;
      plan.q_count += place.matrix ? place.matrix->size.q_count() : 0;
      plan.places.push_back(std::move(place));
    }
    plan.p_buffer = communicator.allocate(plan.p_count * sizeof(float));
    if (plan.q_count > 0) plan.q_buffer = communicator.allocate(plan.q_count * sizeof(float));
    return plan;
  }

  HookStep send_p(const GradBucket& bucket, Plan& plan, Communicator& communicator) {
    errors_.add_to(bucket);
    for (const Place& place : plan.places) {
      const auto* const values = static_cast<const float*>(place.gradient.view.data);
      float* const p = floats_of(*plan.p_buffer) + place.p_begin;
      if (!place.matrix) {
        std::copy_n(values, place.gradient.view.count, p);
        continue;
      }
      Matrix& matrix = *place.matrix;
      const std::size_t parameter = place.gradient.parameter, columns = matrix.size.columns;
      hooks::orthogonalize(matrix.q.data(), matrix.size.rank, columns,
                           [&](std::size_t column, float* replaced) {
                             fill_randomly(parameter, column, replaced, columns);
                           });
      hooks::multiply(values, matrix.q.data(), matrix.size, p);
    }
    return start(*plan.p_buffer, plan.p_count, communicator);
  }

  HookStep send_q(Plan& plan, Communicator& communicator) {
    for (const Place& place : plan.places) {
      auto* const values = static_cast<float*>(place.gradient.view.data);
      float* const p = floats_of(*plan.p_buffer) + place.p_begin;
      if (!place.matrix) {
        std::copy_n(p, place.gradient.view.count, values);
        continue;
      }
      const hooks::MatrixSize& size = place.matrix->size;
      hooks::orthogonalize(p, size.rank, size.rows);
      hooks::multiply_transposed(values, p, size, floats_of(*plan.q_buffer) + place.q_begin);
    }
    return plan.q_buffer ? start(*plan.q_buffer, plan.q_count, communicator) : HookStep{};
  }

  void decompress(Plan& plan) {
    for (const Place& place : plan.places) {
      if (!place.matrix) continue;
      decompress(place, floats_of(*plan.p_buffer) + place.p_begin,
                 floats_of(*plan.q_buffer) + place.q_begin);
    }
  }

  void decompress(const Place& place, const float* p, const float* q) {
    Matrix& matrix = *place.matrix;
    const hooks::MatrixSize& size = matrix.size;
    auto* const values = static_cast<float*>(place.gradient.view.data);
    float* const errors = errors_.of(place.gradient);
    if (!hooks::all_finite(p, size.p_count()) || !hooks::all_finite(q, size.q_count())) {
      // The case is the same on every rank: P and Q are the same on all.
      std::fill_n(values, place.gradient.view.count, std::numeric_limits<float>::quiet_NaN());
      std::fill_n(errors, place.gradient.view.count, 0.0F);
      return begin_anew(place.gradient.parameter, matrix);
    }
    std::copy_n(q, size.q_count(), matrix.q.begin());
    row_.resize(size.columns);
    for (std::size_t i = 0; i < size.rows; ++i) {
      hooks::row_of_product(p, q, size, i, row_.data());
      float* const row = values + i * size.columns;
      for (std::size_t j = 0; j < size.columns; ++j) {
        errors[i * size.columns + j] = row[j] - row_[j];
        row[j] = row_[j];
      }
    }
  }

  const int rank_;                          // columns of the narrow matrices
  std::map<std::size_t, Matrix> matrices_;  // by parameter
  std::vector<Plan> plans_;                 // by bucket
  std::vector<float> row_;                  // scratch
};

}  // namespace

std::shared_ptr<CommHook> make_power_sgd_hook(int rank, std::uint64_t start_iteration) {
  return std::make_shared<PowerSgdHook>(rank, start_iteration);
}

}  // namespace ddprun
