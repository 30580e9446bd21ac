// SPDX-License-Identifier: Apache-2.0
// UpdateKernels for x86-64 with AVX2; the build compiles this file with that flag.
#include "worker_sdk/ddp/update_kernels_impl.h"

namespace ddprun {
extern const UpdateKernels kAvx2UpdateKernels;
const UpdateKernels kAvx2UpdateKernels{"avx2", adam, sgd};
}  // namespace ddprun
