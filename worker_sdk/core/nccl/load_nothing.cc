// SPDX-License-Identifier: Apache-2.0
// The loaders of a build without CUDA and NCCL headers.
#include "common/error.h"
#include "worker_sdk/core/nccl/loader.h"

namespace ddprun::nccl {
namespace {

[[noreturn]] void throw_not_built_in() {
  throw Error(ErrorCode::kUnsupported,
              "built without CUDA and NCCL (cuda_runtime_api.h or nccl.h was not found when ddprun "
              "was configured): use the host backend, or install the headers and build again");
}

}  // namespace

std::shared_ptr<CudaApi> load_cuda() { throw_not_built_in(); }
std::shared_ptr<NcclApi> load_nccl() { throw_not_built_in(); }

}  // namespace ddprun::nccl
