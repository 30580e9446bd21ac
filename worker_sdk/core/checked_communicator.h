// SPDX-License-Identifier: Apache-2.0
// Debug mode for a backend that doesn't compare the ranks' calls by itself (NCCL;
// docs/flight-recorder.md). Before each collective starts, the calls are compared through an
// additional host communicator.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "worker_sdk/core/communicator.h"
#include "worker_sdk/core/worker_progress.h"

namespace ddprun {

// Makes the additional communicator over the same ranks. It counts in `progress`.
using SideMaker =
    std::function<std::unique_ptr<Communicator>(const std::shared_ptr<WorkerProgress>& progress)>;

// Works as `checked`, but each collective first waits until all ranks have called one, also an
// asynchronous one. If kind, size, dtype, reduce op or root differ, every rank throws
// Error(kProtocol), which names one rank of each call that differs. `checked` is then aborted.
// Error(kTimeout) names a rank that doesn't come. Send and recv are not checked. Collective.
std::unique_ptr<Communicator> make_checked_communicator(std::unique_ptr<Communicator> checked,
                                                        std::uint32_t number,
                                                        const SideMaker& make_side);

}  // namespace ddprun
