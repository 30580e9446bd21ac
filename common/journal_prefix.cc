// SPDX-License-Identifier: Apache-2.0
#include "common/journal_prefix.h"

#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstdlib>

namespace ddprun {
namespace {

bool is_named_by_environment(int fd) {
  const char* stream = std::getenv("JOURNAL_STREAM");
  struct stat status {};
  if (stream == nullptr || ::fstat(fd, &status) != 0) return false;
  return stream == concat(status.st_dev, ':', status.st_ino);
}

}  // namespace

bool stderr_is_journal() {
  static const bool is_journal = is_named_by_environment(STDERR_FILENO);
  return is_journal;
}

std::string_view journal_prefix(LogLevel level) {
  constexpr std::array<std::string_view, 4> kPrefixes = {"<7>", "<6>", "<4>", "<3>"};  // syslog(3)
  return stderr_is_journal() ? kPrefixes[static_cast<std::size_t>(level)] : std::string_view();
}

}  // namespace ddprun
