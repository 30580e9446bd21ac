// SPDX-License-Identifier: Apache-2.0
// A buffer that a collective works on. Owns nothing.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ddprun {

enum class DType : std::uint8_t {
  kFloat32,
  kFloat64,
  kFloat16,
  kBFloat16,
  kInt8,
  kUInt8,
  kInt32,
  kInt64,
  kBool,        // a byte: 0 or 1
  kFloat8E4M3,  // torch.float8_e4m3fn: without infinities, at most 448
  kFloat8E5M2,
};

inline constexpr std::size_t kNumDTypes = 11;

// Returns 0 for an unknown type.
constexpr std::size_t size_of(DType dtype) {
  constexpr std::size_t kSizes[kNumDTypes] = {4, 8, 2, 2, 1, 1, 4, 8, 1, 1, 1};  // as above
  const auto number = static_cast<std::size_t>(dtype);
  return number < kNumDTypes ? kSizes[number] : 0;
}

const char* to_string(DType dtype);

struct Device {
  enum class Kind : std::uint8_t { kCpu, kCuda };
  Kind kind = Kind::kCpu;
  int index = 0;

  friend bool operator==(const Device&, const Device&) = default;
};

inline constexpr std::size_t kMaxBufferBytes = PTRDIFF_MAX;

// `count` elements of `dtype`, contiguous, on `device`.
struct TensorView {
  void* data = nullptr;
  std::size_t count = 0;
  DType dtype = DType::kFloat32;
  Device device{};

  std::size_t size_bytes() const { return count * size_of(dtype); }

  // False if size_bytes() would overflow or the dtype is unknown: no such buffer exists.
  bool is_possible() const {
    return size_of(dtype) > 0 && count <= kMaxBufferBytes / size_of(dtype);
  }
};

}  // namespace ddprun
