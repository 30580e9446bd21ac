// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/ddp/hooks/compression.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <vector>

#include "common/check.h"
#include "common/parsed_number.h"
#include "common/text.h"
#include "common/throw_error.h"
#include "worker_sdk/core/host/reduce_kernels.h"
#include "worker_sdk/ddp/hooks/hook_kernels.h"
#include "worker_sdk/ddp/hooks/hook_parts.h"

namespace ddprun {
namespace {

using Kind = Compression::Kind;

// The hooks work on float32 in the memory of the CPU. Buckets of other dtypes are averaged
// uncompressed.

// Sends half the bytes: average = cast⁻¹(all_reduce(cast(gradient))). The host communicator sums as
// float32 and rounds once; a gradient beyond float16's ±65504 becomes infinite. It is the same as
// PyTorch's fp16_compress_hook and bf16_compress_hook. If the communicator narrows by itself, it
// works on the gradients' own memory and casts only what is sent, a piece at a time.
class CastHook : public CommHook {
 public:
  explicit CastHook(DType wire) : wire_(wire) {
    DDPRUN_CHECK(wire == DType::kFloat16 || wire == DType::kBFloat16);
  }

  void prepare(std::span<const GradBucket> buckets, Communicator& communicator) override {
    hooks::check_on_cpu(buckets);
    buffers_.clear();
    if (communicator.narrows()) return;
    const auto bytes_of = [this](const GradBucket& bucket) {
      return bucket.view.count * size_of(wire_);
    };
    hooks::allocate(buckets, bytes_of, communicator, buffers_);
  }

  HookStep run(const GradBucket& bucket, int step, Communicator& communicator) override {
    if (!hooks::is_compressible(bucket.view)) {
      return hooks::average_as_it_is(bucket, step, communicator);
    }
    const std::size_t count = bucket.view.count;
    if (buffers_.empty()) {
      if (step != 0) return {};
      return {
          communicator.all_reduce(bucket.view, ReduceOp::kAverage, {.async = true, .wire = wire_}),
          count * size_of(wire_)};
    }
    const TensorView wire{.data = buffers_[bucket.index]->data(), .count = count, .dtype = wire_};
    auto* const gradients = static_cast<float*>(bucket.view.data);
    if (step == 0) {
      host::reduce_kernels().narrow(wire.data, gradients, count, wire_);
      return {communicator.all_reduce(wire, ReduceOp::kAverage, {.async = true}),
              wire.size_bytes()};
    }
    host::reduce_kernels().widen(gradients, wire.data, count, wire_);
    return {};
  }

 private:
  const DType wire_;
  hooks::Buffers buffers_;  // by bucket; empty: the communicator narrows by itself
};

// Sends a quarter of the bytes: 8 bit integers, each block of 256 with a scale. Sums of different
// scales are no 8 bit integers, so all ranks' codes are gathered and each rank adds them up.
// average = Σ scale · code / world size, in float32, in the order of the ranks. A rank receives
// 1.016 bytes per element from each other rank; a float32 all-reduce receives about 8 in all.
// Non-finite gradients make their block's average NaN.
class Int8Hook : public CommHook {
 public:
  void prepare(std::span<const GradBucket> buckets, Communicator& communicator) override {
    hooks::check_on_cpu(buckets);
    hooks::allocate_gathered(buckets, part_bytes, communicator, buffers_);
  }

  HookStep run(const GradBucket& bucket, int step, Communicator& communicator) override {
    if (!buffers_[bucket.index]) return hooks::average_as_it_is(bucket, step, communicator);
    const hooks::Gathered gathered(*buffers_[bucket.index], part_bytes(bucket), communicator);
    const std::size_t count = bucket.view.count;
    const auto scales_of = [&](int rank) { return reinterpret_cast<float*>(gathered.part(rank)); };
    const auto codes_of = [&](int rank) {
      return reinterpret_cast<std::int8_t*>(scales_of(rank) + hooks::num_int8_blocks(count));
    };
    auto* const gradients = static_cast<float*>(bucket.view.data);
    if (step == 0) {
      const int self = communicator.rank();
      hooks::encode_int8(gradients, count, scales_of(self), codes_of(self));
      return gathered.start();
    }
    std::fill_n(gradients, count, 0.0F);
    for (int rank = 0; rank < communicator.size(); ++rank) {
      hooks::add_int8(gradients, count, scales_of(rank), codes_of(rank));
    }
    host::reduce_kernels().divide(gradients, count, DType::kFloat32, communicator.size());
    return {};
  }

 private:
  // Returns the bytes of a rank's part: the scales, then the codes.
  static std::size_t part_bytes(const GradBucket& bucket) {
    return hooks::num_int8_blocks(bucket.view.count) * sizeof(float) + bucket.view.count;
  }

  hooks::Buffers buffers_;  // by bucket: all ranks' parts
};

// Magnitudes compared as integers have the order of the numbers, with NaN above infinity.
std::uint32_t magnitude(float value) { return std::bit_cast<std::uint32_t>(value) & 0x7fffffffu; }

// Calls take(index) for the `num_taken` largest of `values`, in ascending index order. `scratch` is
// changed.
template <typename Take>
void take_largest(const float* values, std::size_t count, std::size_t num_taken,
                  std::vector<std::uint32_t>& scratch, const Take& take) {
  scratch.resize(count);
  std::transform(values, values + count, scratch.begin(), magnitude);
  const auto last = scratch.begin() + static_cast<std::ptrdiff_t>(num_taken - 1);
  std::nth_element(scratch.begin(), last, scratch.end(), std::greater<>());
  const std::uint32_t threshold = *last;
  const auto larger =
      std::count_if(scratch.begin(), last, [&](std::uint32_t each) { return each > threshold; });
  std::size_t num_equal = num_taken - static_cast<std::size_t>(larger);
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t each = magnitude(values[i]);
    if (each < threshold) continue;
    if (each == threshold) {
      if (num_equal == 0) continue;
      --num_equal;
    }
    take(i);
  }
}

// Only the largest gradients travel; the others are kept and added up until they are large. A
// bucket has n elements, with `sum` = gradient + error. The k = max(1, ratio · n rounded) elements
// of `sum` with the largest magnitude go to all ranks. Among equal ones the first go; NaN is
// largest. Each goes as a float and a 32 bit index: 8 · k bytes. `error` = `sum` without the sent
// elements. `average` = all ranks' sent elements, added up in the order of the ranks, divided by
// the world size.
class TopKHook : public hooks::FeedbackHook {
 public:
  TopKHook(double ratio, std::uint64_t start_iteration)
      : FeedbackHook(start_iteration), ratio_(ratio) {
    DDPRUN_CHECK(ratio > 0 && ratio <= 1);
  }

  void prepare(std::span<const GradBucket> buckets, Communicator& communicator) override {
    hooks::check_on_cpu(buckets);
    for (const GradBucket& bucket : buckets) {
      if (!hooks::is_compressible(bucket.view)) continue;
      if (bucket.view.count > std::numeric_limits<std::uint32_t>::max()) {
        throw_invalid("top-k compression: the bucket of ", bucket.gradients.front().name, " has ",
                      bucket.view.count, " elements, more than 32 bit indices reach");
      }
      errors_.prepare(bucket);
    }
    const auto bytes_of = [this](const GradBucket& bucket) { return part_bytes(bucket); };
    hooks::allocate_gathered(buckets, bytes_of, communicator, buffers_);
  }

  HookStep run(const GradBucket& bucket, int step, Communicator& communicator) override {
    if (!compresses(bucket, step) || !buffers_[bucket.index]) {
      return hooks::average_as_it_is(bucket, step, communicator);
    }
    const std::size_t num = num_sent(bucket);
    const hooks::Gathered gathered(*buffers_[bucket.index], part_bytes(bucket), communicator);
    const auto values_of = [&](int rank) { return reinterpret_cast<float*>(gathered.part(rank)); };
    const auto indices_of = [&](int rank) {
      return reinterpret_cast<std::uint32_t*>(values_of(rank) + num);
    };
    auto* const gradients = static_cast<float*>(bucket.view.data);
    if (step == 0) {
      float* value = values_of(communicator.rank());
      std::uint32_t* index = indices_of(communicator.rank());
      errors_.add_to(bucket);
      take_largest(gradients, bucket.view.count, num, magnitudes_, [&](std::size_t taken) {
        *index++ = static_cast<std::uint32_t>(taken);
        *value++ = gradients[taken];
        gradients[taken] = 0;
      });
      errors_.take_from(bucket);
      return gathered.start();
    }
    std::fill_n(gradients, bucket.view.count, 0.0F);
    for (int rank = 0; rank < communicator.size(); ++rank) {
      const float* const values = values_of(rank);
      const std::uint32_t* const indices = indices_of(rank);
      for (std::size_t i = 0; i < num; ++i) gradients[indices[i]] += values[i];
    }
    host::reduce_kernels().divide(gradients, bucket.view.count, DType::kFloat32,
                                  communicator.size());
    return {};
  }

  // Returns "topk.iterations" and "error.NAME".
  std::vector<HookTensor> state() override {
    std::vector<HookTensor> state{iterations("topk")};
    errors_.append_state(state);
    return state;
  }

 private:
  std::size_t num_sent(const GradBucket& bucket) const {
    std::size_t count = 0;
    for (const GradBucket::Gradient& gradient : bucket.gradients) count += gradient.view.count;
    const double wanted = std::floor(ratio_ * static_cast<double>(count) + 0.5);
    return std::max<std::size_t>(1, static_cast<std::size_t>(wanted));
  }

  std::size_t part_bytes(const GradBucket& bucket) const {
    return num_sent(bucket) * (sizeof(float) + sizeof(std::uint32_t));
  }

  const double ratio_;
  hooks::Buffers buffers_;                 // by bucket: all ranks' parts
  std::vector<std::uint32_t> magnitudes_;  // scratch
};

template <typename Number>
bool read(std::string_view text, Number& number) {
  const auto parsed = parsed_number<Number>(text);
  if (parsed) number = *parsed;
  return parsed.has_value();
}

std::optional<Compression> parse(std::string_view text) {
  const auto words = parts_between(text, ':');
  const std::string_view name = words.front();
  Compression result;
  if (name == "topk" || name == "powersgd") {
    result.kind = name == "topk" ? Kind::kTopK : Kind::kPowerSgd;
    const auto read_first = [&](std::string_view word) {
      return name == "topk" ? read(word, result.ratio) : read(word, result.rank);
    };
    if (words.size() > 3 || (words.size() > 1 && !read_first(words[1]))) return {};
    if (words.size() > 2 && !read(words[2], result.start_iteration)) return {};
    if (!(result.ratio > 0 && result.ratio <= 1) || result.rank < 1) return {};
    return result;
  }
  for (const Kind kind : {Kind::kNone, Kind::kFloat16, Kind::kBFloat16, Kind::kInt8}) {
    if (text == to_string(Compression{.kind = kind})) return Compression{.kind = kind};
  }
  return {};
}

}  // namespace

Compression parse_compression(std::string_view text) {
  if (const auto parsed = parse(text)) return *parsed;
  throw_invalid("\"", one_line(text), "\" is no compression: say ", kCompressionForms,
                ", with 0 < RATIO <= 1 and RANK >= 1");
}

std::string to_string(const Compression& compression) {
  switch (compression.kind) {
    case Kind::kNone:
      return "none";
    case Kind::kFloat16:
      return "fp16";
    case Kind::kBFloat16:
      return "bf16";
    case Kind::kInt8:
      return "int8";
    case Kind::kTopK: {
      char ratio[32];
      char* const end = std::to_chars(ratio, ratio + sizeof ratio, compression.ratio).ptr;
      return concat("topk:", std::string_view(ratio, end), ":", compression.start_iteration);
    }
    case Kind::kPowerSgd:
      return concat("powersgd:", compression.rank, ":", compression.start_iteration);
  }
  return "";
}

std::shared_ptr<CommHook> make_comm_hook(const Compression& compression) {
  switch (compression.kind) {
    case Kind::kNone:
      return nullptr;
    case Kind::kFloat16:
      return std::make_shared<CastHook>(DType::kFloat16);
    case Kind::kBFloat16:
      return std::make_shared<CastHook>(DType::kBFloat16);
    case Kind::kInt8:
      return std::make_shared<Int8Hook>();
    case Kind::kTopK:
      return std::make_shared<TopKHook>(compression.ratio, compression.start_iteration);
    case Kind::kPowerSgd:
      return make_power_sgd_hook(compression.rank, compression.start_iteration);
  }
  return nullptr;
}

}  // namespace ddprun
