// SPDX-License-Identifier: Apache-2.0
#include "common/exit_codes.h"

namespace ddprun {

ExitCode exit_code_for(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kUnavailable:
    case ErrorCode::kResourceExhausted:
    case ErrorCode::kUnsupported:
      return ExitCode::kUsage;
    case ErrorCode::kTimeout:
    case ErrorCode::kConnectionLost:
      return ExitCode::kRendezvousUnreachable;
    case ErrorCode::kPeerLost:
      return ExitCode::kRetryable;
    case ErrorCode::kProtocol:
    case ErrorCode::kAborted:
    case ErrorCode::kSystem:
      return ExitCode::kInternal;
  }
  return ExitCode::kInternal;
}

}  // namespace ddprun
