// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/ddp/update_kernels.h"

namespace ddprun {

extern const UpdateKernels kPlainUpdateKernels;
#ifdef DDPRUN_HAVE_AVX2_KERNELS
extern const UpdateKernels kAvx2UpdateKernels;
#endif

std::vector<const UpdateKernels*> available_update_kernels() {
  std::vector<const UpdateKernels*> found{&kPlainUpdateKernels};
#ifdef DDPRUN_HAVE_AVX2_KERNELS
  if (__builtin_cpu_supports("avx2")) found.push_back(&kAvx2UpdateKernels);
#endif
  return found;
}

const UpdateKernels& update_kernels() {
  static const UpdateKernels& best = *available_update_kernels().back();
  return best;
}

}  // namespace ddprun
