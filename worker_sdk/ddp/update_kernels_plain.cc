// SPDX-License-Identifier: Apache-2.0
// UpdateKernels for any CPU of the target architecture.
#include "worker_sdk/ddp/update_kernels_impl.h"

namespace ddprun {
extern const UpdateKernels kPlainUpdateKernels;
const UpdateKernels kPlainUpdateKernels{"plain", adam, sgd};
}  // namespace ddprun
