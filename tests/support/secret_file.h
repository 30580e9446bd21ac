// SPDX-License-Identifier: Apache-2.0
// A token for a test.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "common/error.h"
#include "common/secret.h"
#include "common/unique_fd.h"
#include "tests/support/temp_directory.h"

namespace ddprun::test {

inline void write_secret_file(const std::string& path, const std::string& text,
                              mode_t mode = 0600) {
  const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode));
  if (!fd || ::fchmod(fd.get(), mode) != 0 ||
      ::write(fd.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    throw_system_error("write " + path, errno);
  }
}

inline std::shared_ptr<const Secret> secret_of(const std::string& text) {
  const TempDirectory directory;
  write_secret_file(directory.path("token"), text);
  return Secret::from_file(directory.path("token"));
}

}  // namespace ddprun::test
