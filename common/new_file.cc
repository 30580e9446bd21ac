// SPDX-License-Identifier: Apache-2.0
#include "common/new_file.h"

#include <fcntl.h>
#include <unistd.h>

#include "common/random_id.h"

namespace ddprun {

NewFile make_new_file(const std::string& prefix, mode_t mode) {
  NewFile file{.path = prefix + random_id().substr(0, 12), .fd = {}};
  // With O_EXCL no link is followed, either.
  file.fd.reset(::open(file.path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode));
  return file;
}

void sync_directory(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd) ::fsync(fd.get());
}

}  // namespace ddprun
