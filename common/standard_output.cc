// SPDX-License-Identifier: Apache-2.0
#include "common/standard_output.h"

#include <cerrno>
#include <cstdio>

#include "common/error.h"
#include "common/exit_codes.h"
#include "common/standard_streams.h"

namespace ddprun {

int write_stdout(const std::string& text) {
  if (was_stdout_closed()) return EBADF;
  errno = 0;
  const bool is_written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  return is_written && std::fflush(stdout) == 0 ? 0 : errno;
}

int print_what_was_asked(const char* program, const std::string& text) {
  const int error = write_stdout(text);
  if (error == 0 || error == EPIPE) return static_cast<int>(ExitCode::kOk);
  std::fprintf(stderr, "%s: can't write to stdout: %s\n", program, errno_text(error).c_str());
  return static_cast<int>(ExitCode::kOutputLost);
}

}  // namespace ddprun
