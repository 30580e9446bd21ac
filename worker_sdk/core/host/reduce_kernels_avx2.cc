// SPDX-License-Identifier: Apache-2.0
// ReduceKernels for x86-64 with AVX2 and F16C; the build compiles this file with those flags.
#include "worker_sdk/core/host/reduce_kernels_impl.h"

namespace ddprun::host {
extern const ReduceKernels kAvx2Kernels;
const ReduceKernels kAvx2Kernels{"avx2", combine, divide, widen, narrow, copy};
}  // namespace ddprun::host
