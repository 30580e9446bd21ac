// SPDX-License-Identifier: Apache-2.0
#include "common/exit_codes.h"

#include "tests/support/catch.h"

using namespace ddprun;

TEST_CASE("exit_code_for: errors that the user can correct are usage errors, no others") {
  CHECK(exit_code_for(ErrorCode::kInvalidArgument) == ExitCode::kUsage);
  CHECK(exit_code_for(ErrorCode::kUnavailable) == ExitCode::kUsage);  // e.g. the port is in use
  CHECK(exit_code_for(ErrorCode::kResourceExhausted) == ExitCode::kUsage);  // e.g. of open files
  CHECK(exit_code_for(ErrorCode::kTimeout) == ExitCode::kRendezvousUnreachable);
  CHECK(exit_code_for(ErrorCode::kConnectionLost) == ExitCode::kRendezvousUnreachable);
  CHECK(exit_code_for(ErrorCode::kPeerLost) == ExitCode::kRetryable);
  CHECK(exit_code_for(ErrorCode::kSystem) == ExitCode::kInternal);
  CHECK(exit_code_for(ErrorCode::kProtocol) == ExitCode::kInternal);
}
