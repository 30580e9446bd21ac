// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/ddp/update_kernels_impl.h"

namespace ddprun {

#ifdef DDPRUN_HAVE_AVX2_KERNELS
extern const UpdateKernels kAvx2UpdateKernels;
#endif

std::vector<const UpdateKernels*> available_update_kernels() {
  static constexpr UpdateKernels kPlain{"plain", adam, sgd};
  std::vector<const UpdateKernels*> found{&kPlain};
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
