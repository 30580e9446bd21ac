// SPDX-License-Identifier: Apache-2.0
// Which backend a communicator uses. All ranks agree on it through the store before any of them
// starts one. So no rank waits in NCCL for a peer that uses the host backend.
#pragma once

#include <string>
#include <vector>

#include "rendezvous/store/store.h"
#include "worker_sdk/core/backend_choice.h"

namespace ddprun {

// One rank's contribution to the agreement.
struct DeviceOffer {
  int rank = 0;
  BackendChoice choice = BackendChoice::kAuto;
  std::string device_id{};  // UUID, the same on all ranks that use the device; empty: none
  // The same on every rank whose device is a slice (MIG) of this GPU, if NCCL takes only one rank
  // per GPU. Empty: it takes several.
  std::string gpu_id{};
  std::string reason{};  // why it has no device: "no GPU", "LOCAL_RANK 3, but 2 GPUs", …
};

struct BackendVerdict {
  enum class Kind { kHost, kNccl, kRefused };
  Kind kind = Kind::kHost;
  std::string why;  // kHost for a kAuto: one line naming the rank; kRefused: the error
  bool some_have_a_device = false;  // kHost for a kAuto: a rank not named in `why` has one
};

// Decides for NCCL only if every rank has a device of its own (docs/nccl.md). Otherwise kAuto falls
// back to kHost, and kNccl is refused. Ranks that differ in their choice are refused, too. Offers
// in any order. Pure.
BackendVerdict decide_backend(std::vector<DeviceOffer> offers);

// Collective over `world_size` ranks: O(1) store requests per rank under `store`'s prefix, which
// must be fresh. The last rank to arrive decides for all. Throws Error(kTimeout) naming ranks that
// did not arrive, and Error(kInvalidArgument) on every rank when the verdict is kRefused.
BackendVerdict agree_on_backend(store::Store& store, int world_size, const DeviceOffer& offer);

}  // namespace ddprun
