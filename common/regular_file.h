// SPDX-License-Identifier: Apache-2.0
// A file of somebody's configuration, opened so that nobody waits for it.
#pragma once

#include <sys/stat.h>

#include <string>

#include "common/unique_fd.h"

namespace ddprun {

struct RegularFile {
  UniqueFd fd;               // to read from; none: `problem` says why
  struct stat info {};       // of what is open
  std::string problem = {};  // "No such file or directory", "a is a link to b, which …"
};

// A pipe (a FIFO, a shell's <(…)), which could keep its reader waiting for ever and can be read
// once alone, a directory or a device is none. Never blocks but for the disk.
RegularFile open_regular_file(const std::string& path);

}  // namespace ddprun
