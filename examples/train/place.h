// SPDX-License-Identifier: Apache-2.0
// Where this process stands in its job.
#pragma once

#include "worker_sdk/core/communicator.h"
#include "worker_sdk/core/session.h"

namespace ddprun::train {

struct Place {
  Communicator& communicator;
  Session* session = nullptr;  // null: no launcher
  int device = 0;
};

}  // namespace ddprun::train
