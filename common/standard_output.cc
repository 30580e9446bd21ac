// SPDX-License-Identifier: Apache-2.0
#include "common/standard_output.h"

#include <cerrno>
#include <cstdio>

#include "common/error.h"
#include "common/exit_codes.h"

namespace ddprun {

int print_what_was_asked(const char* program, const std::string& text) {
  errno = 0;
  const bool is_written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  if ((std::fflush(stdout) == 0 && is_written) || errno == EPIPE) {
    return static_cast<int>(ExitCode::kOk);
  }
  std::fprintf(stderr, "%s: can't write to stdout: %s\n", program, errno_text(errno).c_str());
  return static_cast<int>(ExitCode::kOutputLost);
}

}  // namespace ddprun
