// SPDX-License-Identifier: Apache-2.0
#include "common/error.h"

#include <cerrno>
#include <cstring>

namespace ddprun {

const char* to_string(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return "invalid argument";
    case ErrorCode::kTimeout:
      return "timeout";
    case ErrorCode::kUnavailable:
      return "unavailable";
    case ErrorCode::kConnectionLost:
      return "connection lost";
    case ErrorCode::kProtocol:
      return "protocol error";
    case ErrorCode::kPeerLost:
      return "peer lost";
    case ErrorCode::kAborted:
      return "aborted";
    case ErrorCode::kResourceExhausted:
      return "resource exhausted";
    case ErrorCode::kUnsupported:
      return "unsupported";
    case ErrorCode::kSystem:
      return "system error";
  }
  return "unknown error";
}

std::string errno_text(int error_number) {
  char buffer[256];
  std::string text = strerror_r(error_number, buffer, sizeof buffer);  // GNU: returns the text
  if (error_number == EMFILE) text += " (see ulimit -n)";
  return text;
}

void throw_system_error(const std::string& what, int error_number) {
  const bool is_limit = error_number == EMFILE || error_number == ENFILE;
  throw Error(is_limit ? ErrorCode::kResourceExhausted : ErrorCode::kSystem,
              what + ": " + errno_text(error_number));
}

}  // namespace ddprun
