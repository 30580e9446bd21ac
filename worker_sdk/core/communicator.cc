// SPDX-License-Identifier: Apache-2.0
// The part that all communicators share. common/operation_facts.cc has the names of the progress
// page's numbers, for programs outside, too.
#include "worker_sdk/core/communicator.h"

#include <memory>
#include <mutex>
#include <vector>

#include "common/operation_facts.h"
#include "common/throw_error.h"

namespace ddprun {

static_assert(static_cast<int>(ReduceOp::kSum) == 0 && static_cast<int>(ReduceOp::kProduct) == 4);
static_assert(static_cast<int>(DType::kFloat32) == 0 && static_cast<int>(DType::kInt64) == 7);
static_assert(static_cast<std::size_t>(DType::kFloat8E5M2) + 1 == kNumDTypes);

const char* to_string(ReduceOp op) { return op_name(static_cast<std::uint8_t>(op)); }

WorkPtr Communicator::recv_any(TensorView /*buffer*/, int* /*source*/,
                               const CallOptions& /*options*/) {
  throw_invalid("the ", backend(), " backend can't receive from any rank: name one");
}

void Communicator::leave_kept_behind() {
  static std::mutex mutex;
  static auto& left = *new std::vector<std::shared_ptr<void>>;  // no destructor frees it at the end
  const std::lock_guard lock(mutex);
  left.insert(left.end(), kept_.begin(), kept_.end());
}

const char* to_string(DType dtype) { return dtype_name(static_cast<std::uint8_t>(dtype)); }

}  // namespace ddprun
