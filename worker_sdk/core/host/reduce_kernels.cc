// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/host/reduce_kernels.h"

#ifdef DDPRUN_HAVE_AVX2_KERNELS
#include <cpuid.h>
#endif

#include <cstring>

#include "common/check.h"

namespace ddprun::host {

extern const ReduceKernels kPlainKernels;
#ifdef DDPRUN_HAVE_AVX2_KERNELS
extern const ReduceKernels kAvx2Kernels;
#endif

namespace {

#ifdef DDPRUN_HAVE_AVX2_KERNELS
// clang before 16 doesn't know __builtin_cpu_supports("f16c").
bool has_f16c() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & bit_F16C);
}
#endif

bool is_narrow(DType dtype) {
  return dtype == DType::kFloat16 || dtype == DType::kBFloat16 || dtype == DType::kFloat8E4M3 ||
         dtype == DType::kFloat8E5M2;
}

}  // namespace

std::vector<const ReduceKernels*> available_reduce_kernels() {
  std::vector<const ReduceKernels*> found{&kPlainKernels};
#ifdef DDPRUN_HAVE_AVX2_KERNELS
  if (__builtin_cpu_supports("avx2") && has_f16c()) found.push_back(&kAvx2Kernels);
#endif
  return found;
}

const ReduceKernels& reduce_kernels() {
  static const ReduceKernels& best = *available_reduce_kernels().back();
  return best;
}

void copy_bytes(void* destination, const void* source, std::size_t num_bytes) {
  if (num_bytes == 0) return;
  if (num_bytes < 2048) {
    std::memcpy(destination, source, num_bytes);
  } else {
    reduce_kernels().copy(destination, source, num_bytes);
  }
}

DType accumulator_of(DType dtype) { return is_narrow(dtype) ? DType::kFloat32 : dtype; }

void reduce_block(void* destination, const void* const* sources, std::size_t num_sources,
                  std::size_t count, DType dtype, ReduceOp op) {
  DDPRUN_CHECK(num_sources > 0);
  const ReduceKernels& kernels = reduce_kernels();
  if (is_narrow(dtype)) {
    alignas(64) float widened[kReduceBlockBytes / sizeof(float)];
    DDPRUN_CHECK(count * sizeof(float) <= sizeof widened);
    kernels.widen(static_cast<float*>(destination), sources[0], count, dtype);
    for (std::size_t i = 1; i < num_sources; ++i) {
      kernels.widen(widened, sources[i], count, dtype);
      kernels.combine(destination, destination, widened, count, DType::kFloat32, op);
    }
    return;
  }
  if (num_sources == 1) {
    if (destination != sources[0]) copy_bytes(destination, sources[0], count * size_of(dtype));
    return;
  }
  kernels.combine(destination, sources[0], sources[1], count, dtype, op);
  for (std::size_t i = 2; i < num_sources; ++i) {
    kernels.combine(destination, destination, sources[i], count, dtype, op);
  }
}

void finish_block(void* destination, void* accumulated, std::size_t count, DType dtype, ReduceOp op,
                  int world_size) {
  const ReduceKernels& kernels = reduce_kernels();
  if (op == ReduceOp::kAverage && world_size > 1) {
    kernels.divide(accumulated, count, accumulator_of(dtype), world_size);
  }
  if (is_narrow(dtype)) {
    kernels.narrow(destination, static_cast<const float*>(accumulated), count, dtype);
  } else if (destination != accumulated) {
    copy_bytes(destination, accumulated, count * size_of(dtype));
  }
}

}  // namespace ddprun::host
