// SPDX-License-Identifier: Apache-2.0
// ReduceKernels for any CPU of the target architecture.
#include "worker_sdk/core/host/reduce_kernels_impl.h"

namespace ddprun::host {
extern const ReduceKernels kPlainKernels;
const ReduceKernels kPlainKernels{"plain", combine, divide, widen, narrow, copy};
}  // namespace ddprun::host
