// SPDX-License-Identifier: Apache-2.0
#include "ctl/commands.h"

#include <cerrno>
#include <cstdio>

#include "common/error.h"
#include "common/exit_codes.h"
#include "common/standard_streams.h"
#include "common/text.h"

namespace ddprun::ctl {

void say(const std::string& line) {
  std::fprintf(stderr, "ddprunctl: %s\n", one_line(line).c_str());
}

void tell_lost_output(int error, const std::string& news) {
  if (error == EPIPE && news.empty()) return;
  say(concat("can't write to standard output: ", errno_text(error), news.empty() ? "" : "; ",
             news));
}

int print_or_tell(const std::string& text, int code, const std::string& news) {
  const int error = write_stdout(text);
  if (error == 0) return code;
  tell_lost_output(error, news);
  return static_cast<int>(ExitCode::kOutputLost);
}

}  // namespace ddprun::ctl
