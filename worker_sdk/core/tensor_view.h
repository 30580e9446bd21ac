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

constexpr std::size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
    case DType::kInt64:
      return 8;
    case DType::kFloat32:
    case DType::kInt32:
      return 4;
    case DType::kFloat16:
    case DType::kBFloat16:
      return 2;
    case DType::kInt8:
    case DType::kUInt8:
    case DType::kBool:
    case DType::kFloat8E4M3:
    case DType::kFloat8E5M2:
      return 1;
  }
  return 0;
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
