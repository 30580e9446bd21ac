// SPDX-License-Identifier: Apache-2.0
#include "common/regular_file.h"

#include <fcntl.h>

#include <cerrno>

#include "common/dangling_link.h"

namespace ddprun {
namespace {

const char* kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "it is a directory, and no regular file";
  if (S_ISFIFO(mode)) return "it is a pipe, and no regular file: write its content to one";
  return "it is no regular file";
}

}  // namespace

RegularFile open_regular_file(const std::string& path) {
  RegularFile file;
  file.fd.reset(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!file.fd || ::fstat(file.fd.get(), &file.info) != 0) {
    file.problem = opening_trouble(path, errno);
  } else if (!S_ISREG(file.info.st_mode)) {
    file.problem = kind_of(file.info.st_mode);
  }
  if (!file.problem.empty()) file.fd.reset();
  return file;
}

}  // namespace ddprun
