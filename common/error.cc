// SPDX-License-Identifier: Apache-2.0
#include "common/error.h"

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "common/check.h"
#include "common/exit_codes.h"

namespace ddprun {

void internal::check_failed(const char* file, int line, const char* condition) {
  std::fprintf(stderr, "ddprun: internal error at %s:%d: %s\n", file, line, condition);
  std::abort();
}

const char* to_string(ErrorCode code) {
  constexpr std::array kNames{
      "invalid argument", "timeout", "unavailable",        "connection lost", "protocol error",
      "peer lost",        "aborted", "resource exhausted", "unsupported",     "system error"};
  static_assert(kNames.size() == static_cast<std::size_t>(ErrorCode::kSystem) + 1);
  const auto number = static_cast<std::size_t>(code);
  return number < kNames.size() ? kNames[number] : "unknown error";
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
