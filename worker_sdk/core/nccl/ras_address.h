// SPDX-License-Identifier: Apache-2.0
// Where NCCL's RAS service listens. Its default, localhost:28028, is one for the whole machine: two
// jobs on a node would meet there. Pure.
#pragma once

#include <string>

#include "common/endpoint.h"

namespace ddprun::nccl {

// "localhost:PORT", the same for every worker of a job; jobs differ in id or store. PORT is 21000 …
// 27999, below Linux's ephemeral ports. Two jobs may still get the same: the second has no RAS
// then.
std::string ras_address(const std::string& run_id, const Endpoint& store);

}  // namespace ddprun::nccl
