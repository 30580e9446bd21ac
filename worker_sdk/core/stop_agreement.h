// SPDX-License-Identifier: Apache-2.0
// All ranks leave at the same step boundary, without a rank ever waiting for another. Keys and
// argument: docs/agent-socket.md.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "rendezvous/store/store.h"

namespace ddprun {

class StopAgreement {
 public:
  StopAgreement(int round, int world_size);

  // At the beginning of each step while a stop is asked for: O(1) requests, nobody is waited for.
  // True: `step` is the boundary or beyond it; don't begin it. `store`: the round's, as all ranks
  // see it. Throws its errors; may be called again, with another connection.
  bool reached(store::Store& store, std::uint64_t step);

 private:
  const std::string posted_key_, boundary_key_;
  const int world_size_;
  bool posted_ = false;
  std::optional<std::uint64_t> boundary_;
};

}  // namespace ddprun
