// SPDX-License-Identifier: Apache-2.0
#include "ctl/standard_output.h"

#include <cerrno>
#include <cstdio>

#include "common/error.h"
#include "common/exit_codes.h"
#include "common/log.h"
#include "common/standard_output.h"

namespace ddprun::ctl {

void tell_lost_output(int error, const std::string& news) {
  if (error == EPIPE && news.empty()) return;
  const std::string line =
      concat("can't write to standard output: ", errno_text(error), news.empty() ? "" : "; ", news);
  std::fprintf(stderr, "ddprunctl: %s\n", one_line(line).c_str());
}

int print_or_tell(const std::string& text, int code, const std::string& news) {
  const int error = write_stdout(text);
  if (error == 0) return code;
  tell_lost_output(error, news);
  return static_cast<int>(ExitCode::kOutputLost);
}

}  // namespace ddprun::ctl
