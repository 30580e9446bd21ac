// SPDX-License-Identifier: Apache-2.0
// The arithmetic of the host communicator. Each instruction set is compared with a plain reference.
#include "worker_sdk/core/host/reduce_kernels.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "tests/support/catch.h"
#include "tests/worker_sdk/core/host/reference.h"

using namespace ddprun;
using namespace ddprun::host;

namespace {

constexpr DType kFullTypes[] = {DType::kFloat32, DType::kFloat64, DType::kInt8,
                                DType::kUInt8,   DType::kInt32,   DType::kInt64};
constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMin, ReduceOp::kMax,
                             ReduceOp::kProduct};

// Random bytes; floating types get ordinary numbers so that comparisons are meaningful.
std::vector<unsigned char> random_elements(DType dtype, std::size_t count, std::mt19937& random) {
  std::vector<unsigned char> bytes(count * size_of(dtype) + 64);
  for (auto& byte : bytes) byte = static_cast<unsigned char>(random());
  std::normal_distribution<double> normal;
  for (std::size_t i = 0; i < count; ++i) {
    if (dtype == DType::kFloat32) {
      const float value = static_cast<float>(normal(random));
      std::memcpy(&bytes[i * 4], &value, 4);
    } else if (dtype == DType::kFloat64) {
      const double value = normal(random);
      std::memcpy(&bytes[i * 8], &value, 8);
    }
  }
  return bytes;
}

}  // namespace

TEST_CASE("ReduceKernels: every version gives the same bits for each type, operation and size") {
  std::mt19937 random(1);
  const auto versions = available_reduce_kernels();
  for (const DType dtype : kFullTypes) {
    for (const ReduceOp op : kOps) {
      for (const std::size_t count : {0, 1, 3, 7, 8, 9, 31, 64, 1000}) {
        const auto a = random_elements(dtype, count, random);
        const auto b = random_elements(dtype, count, random);
        std::vector<unsigned char> expected(a.size(), 0xee);
        versions[0]->combine(expected.data(), a.data(), b.data(), count, dtype, op);
        for (const ReduceKernels* version : versions) {
          INFO(version->name << " " << to_string(dtype) << " " << to_string(op) << " " << count);
          std::vector<unsigned char> out(a.size(), 0xee), in_place = a;
          version->combine(out.data(), a.data(), b.data(), count, dtype, op);
          CHECK(out == expected);  // this includes the bytes behind the last element
          version->combine(in_place.data(), in_place.data(), b.data(), count, dtype, op);
          CHECK(std::memcmp(in_place.data(), expected.data(), count * size_of(dtype)) == 0);
        }
      }
    }
  }
}

TEST_CASE("ReduceKernels: a minimum and a maximum pass NaN over, from whichever side") {
  const auto dtype =
      GENERATE(DType::kFloat32, DType::kFloat64);  // shorter ones are made float32 before
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const ReduceKernels* kernels : available_reduce_kernels()) {
    INFO(kernels->name << " " << to_string(dtype));
    const double values[2][3] = {{1, nan, nan}, {nan, 1, nan}};
    std::byte a[24], b[24], out[24];
    for (std::size_t i = 0; i < 3; ++i) {
      test::store_element(a, i, dtype, values[0][i]);
      test::store_element(b, i, dtype, values[1][i]);
    }
    for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
      kernels->combine(out, a, b, 3, dtype, op);
      CHECK(test::load_element(out, 0, dtype) == 1);
      CHECK(test::load_element(out, 1, dtype) == 1);
      CHECK(std::isnan(static_cast<double>(test::load_element(out, 2, dtype))));
    }
  }
}

TEST_CASE("ReduceKernels: a sum of bool is any, a product is all") {
  for (const ReduceKernels* kernels : available_reduce_kernels()) {
    const std::uint8_t a[] = {0, 0, 1, 1}, b[] = {0, 1, 0, 1};
    const auto result = [&](ReduceOp op) {
      std::vector<int> out(4);
      std::uint8_t bytes[4];
      kernels->combine(bytes, a, b, 4, DType::kBool, op);
      std::copy(bytes, bytes + 4, out.begin());
      return out;
    };
    CHECK(result(ReduceOp::kSum) == std::vector{0, 1, 1, 1});
    CHECK(result(ReduceOp::kMax) == std::vector{0, 1, 1, 1});
    CHECK(result(ReduceOp::kProduct) == std::vector{0, 0, 0, 1});
    CHECK(result(ReduceOp::kMin) == std::vector{0, 0, 0, 1});
  }
}

TEST_CASE("ReduceKernels: known answers") {
  for (const ReduceKernels* kernels : available_reduce_kernels()) {
    INFO(kernels->name);
    const std::int8_t a[] = {127, -128, 5, -7}, b[] = {1, -1, -6, 2};
    std::int8_t out[4];
    kernels->combine(out, a, b, 4, DType::kInt8, ReduceOp::kSum);
    CHECK(out[0] == -128);  // the sum wraps
    CHECK(out[1] == 127);
    kernels->combine(out, a, b, 4, DType::kInt8, ReduceOp::kMin);
    CHECK(out[2] == -6);
    kernels->combine(out, a, b, 4, DType::kInt8, ReduceOp::kMax);
    CHECK(out[3] == 2);
    kernels->combine(out, a, b, 4, DType::kInt8, ReduceOp::kProduct);
    CHECK(out[3] == -14);
    std::int32_t sums[] = {7, -7, 9};
    kernels->divide(sums, 3, DType::kInt32, 2);
    CHECK(sums[0] == 3);
    CHECK(sums[1] == -3);
    double values[] = {1.0, 10.0};
    kernels->divide(values, 2, DType::kFloat64, 3);
    CHECK(values[0] == 1.0 / 3);
    CHECK(values[1] == 10.0 / 3);
  }
}

TEST_CASE("half: every float16 and bfloat16 survives the way to float32 and back") {
  for (const ReduceKernels* kernels : available_reduce_kernels()) {
    for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
      std::vector<std::uint16_t> all(65536), back(65536);
      std::vector<float> wide(65536);
      for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
      kernels->widen(wide.data(), all.data(), all.size(), dtype);
      kernels->narrow(back.data(), wide.data(), all.size(), dtype);
      std::size_t wrong = 0;
      for (std::size_t i = 0; i < all.size(); ++i) {
        const float plain =
            dtype == DType::kFloat16 ? float_from_float16(all[i]) : float_from_bfloat16(all[i]);
        const bool same_value = std::isnan(plain) ? std::isnan(wide[i]) : plain == wide[i];
        const bool same_bits = std::isnan(plain) ? true : back[i] == all[i];
        if (!same_value || !same_bits) ++wrong;
      }
      INFO(kernels->name << " " << to_string(dtype));
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE(
    "float8: every one survives the way to float32 and back, and rounding is to nearest even") {
  const auto dtype = GENERATE(DType::kFloat8E4M3, DType::kFloat8E5M2);
  const float largest = dtype == DType::kFloat8E4M3 ? 448.0f : 57'344.0f;
  const float step = dtype == DType::kFloat8E4M3 ? 0x1p-3f : 0x1p-2f;  // the step after 1
  const float smallest = dtype == DType::kFloat8E4M3 ? 0x1p-9f : 0x1p-16f;
  for (const ReduceKernels* kernels : available_reduce_kernels()) {
    INFO(kernels->name << " " << to_string(dtype));
    const auto rounded = [&](float value) {
      std::uint8_t narrow;
      kernels->narrow(&narrow, &value, 1, dtype);
      kernels->widen(&value, &narrow, 1, dtype);
      return value;
    };
    std::vector<std::uint8_t> all(256), back(256);
    std::vector<float> wide(256);
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint8_t>(i);
    kernels->widen(wide.data(), all.data(), all.size(), dtype);
    kernels->narrow(back.data(), wide.data(), all.size(), dtype);
    for (std::size_t i = 0; i < all.size(); ++i) {
      INFO(i);
      if (!std::isfinite(wide[i])) continue;
      CHECK(wide[i] == test::load_element(all.data(), i, dtype));
      CHECK(back[i] == all[i]);
    }
    CHECK(rounded(1 + step / 2) == 1);  // a tie, down to even
    CHECK(rounded(1 + 3 * step / 2) == 1 + 2 * step);
    CHECK(rounded(-largest * 2) == -largest);
    CHECK(rounded(std::numeric_limits<float>::infinity()) == largest);
    CHECK(std::isnan(rounded(std::numeric_limits<float>::quiet_NaN())));
    CHECK(rounded(smallest) == smallest);
    CHECK(rounded(smallest / 2) == 0);  // a tie, to even
    CHECK(rounded(smallest * 0.75f) == smallest);
    CHECK(rounded(1e-30f) == 0);
    std::mt19937 random(7);
    for (int i = 0; i < 10'000; ++i) {
      const float value =
          std::ldexp(static_cast<float>(random()) / 4e9f, static_cast<int>(random() % 24) - 16);
      std::uint8_t expected;
      test::store_element(&expected, 0, dtype, value);
      CHECK(rounded(value) == test::load_element(&expected, 0, dtype));
    }
  }
}

TEST_CASE("half: rounding is to nearest even, and the same in software and hardware") {
  CHECK(float16_from_float(1.0f + 1.0f / 2048) == 0x3c00);  // a tie, down to even
  CHECK(float16_from_float(1.0f + 3.0f / 2048) == 0x3c02);  // a tie, up to even
  CHECK(float16_from_float(65519.0f) == 0x7bff);
  CHECK(float16_from_float(65520.0f) == 0x7c00);               // rounds to infinity
  CHECK(float16_from_float(std::ldexp(1.0f, -24)) == 0x0001);  // the smallest number
  CHECK(float16_from_float(std::ldexp(1.0f, -25)) == 0x0000);  // a tie, to zero
  CHECK(float16_from_float(-0.0f) == 0x8000);
  CHECK(bfloat16_from_float(1.0f + 1.0f / 256) == 0x3f80);
  CHECK(bfloat16_from_float(1.0f + 3.0f / 256) == 0x3f82);
  CHECK(std::isnan(
      float_from_bfloat16(bfloat16_from_float(std::numeric_limits<float>::quiet_NaN()))));

  std::mt19937 random(7);
  std::vector<float> values(1 << 16);
  for (auto& value : values) {
    value = std::ldexp(static_cast<float>(random()) / 4e9f, static_cast<int>(random() % 50) - 32);
  }
  for (const ReduceKernels* kernels : available_reduce_kernels()) {
    std::vector<std::uint16_t> half(values.size()), brain(values.size());
    kernels->narrow(half.data(), values.data(), values.size(), DType::kFloat16);
    kernels->narrow(brain.data(), values.data(), values.size(), DType::kBFloat16);
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      wrong += half[i] != float16_from_float(values[i]);
      wrong += brain[i] != bfloat16_from_float(values[i]);
    }
    INFO(kernels->name);
    CHECK(wrong == 0);
  }
}

TEST_CASE("reduce_block: float16 sums are kept in float32, so small addends count") {
  // 2048 + 1 is 2048 in float16; eight ones in a row must not be lost.
  std::vector<std::uint16_t> big{float16_from_float(2048)}, one{float16_from_float(1)};
  const void* sources[] = {big.data(), one.data(), one.data(), one.data(), one.data()};
  float sum = 0;
  reduce_block(&sum, sources, 5, 1, DType::kFloat16, ReduceOp::kSum);
  CHECK(sum == 2052.0f);
  std::uint16_t result = 0;
  finish_block(&result, &sum, 1, DType::kFloat16, ReduceOp::kSum, 5);
  CHECK(float_from_float16(result) == 2052.0f);
}

TEST_CASE("reduce_block: the order is sources[0], sources[1], …") {
  const float a = 1e8f, b = -1e8f, c = 1.0f;
  float sum = 0;
  const void* forward[] = {&a, &b, &c};
  reduce_block(&sum, forward, 3, 1, DType::kFloat32, ReduceOp::kSum);
  CHECK(sum == 1.0f);
  const void* other[] = {&a, &c, &b};
  reduce_block(&sum, other, 3, 1, DType::kFloat32, ReduceOp::kSum);
  CHECK(sum == 0.0f);
  finish_block(&sum, &sum, 1, DType::kFloat32, ReduceOp::kAverage, 3);
  CHECK(sum == 0.0f);
}

TEST_CASE("copy_bytes: every alignment and length, and not a byte more") {
  std::mt19937 random(3);
  std::vector<unsigned char> from(9000), to(9000);
  for (auto& byte : from) byte = static_cast<unsigned char>(random());
  for (const std::size_t length : {0, 1, 127, 128, 2047, 2048, 2049, 4095, 8191}) {
    for (const std::size_t offset : {0, 1, 16, 63}) {
      std::vector<unsigned char> expected(to.size(), 0);
      std::fill(to.begin(), to.end(), static_cast<unsigned char>(0));
      std::memcpy(expected.data() + offset, from.data() + 3, length);
      copy_bytes(to.data() + offset, from.data() + 3, length);
      CHECK(to == expected);
    }
  }
}
