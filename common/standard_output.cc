// SPDX-License-Identifier: Apache-2.0
#include "common/standard_output.h"

#include <cerrno>
#include <cstdio>

#include "common/error.h"
#include "common/exit_codes.h"
#include "common/standard_streams.h"

namespace ddprun {

int print_what_was_asked(const char* program, const std::string& text) {
  errno = was_stdout_closed() ? EBADF : 0;
  const bool is_written =
      errno == 0 && std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  if ((is_written && std::fflush(stdout) == 0) || errno == EPIPE) {
    return static_cast<int>(ExitCode::kOk);
  }
  std::fprintf(stderr, "%s: can't write to stdout: %s\n", program, errno_text(errno).c_str());
  return static_cast<int>(ExitCode::kOutputLost);
}

}  // namespace ddprun
