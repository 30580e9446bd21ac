// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/membership/state.h"

namespace ddprun::membership {

const char* to_string(JobPhase phase) {
  switch (phase) {
    case JobPhase::kForming:
      return "forming";
    case JobPhase::kRunning:
      return "running";
    case JobPhase::kStopping:
      return "stopping";
    case JobPhase::kEnded:
      return "ended";
  }
  return "unknown";
}

}  // namespace ddprun::membership
