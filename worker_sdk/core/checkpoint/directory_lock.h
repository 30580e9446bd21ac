// SPDX-License-Identifier: Apache-2.0
// Finds out that another process of this machine uses the same directory.
#pragma once

#include <chrono>
#include <string>

#include "common/unique_fd.h"

namespace ddprun {

// Held by the process, as long as this object lives; several of one process don't disturb each
// other. It ends with the process, however that ends. Nothing is written to the directory.
class DirectoryLock {
 public:
  // Waits up to `patience` for another process to end, then throws Error(kInvalidArgument) that
  // names it. Where the file system has no locks, or somebody on another machine has this one,
  // there is none: a machine that is gone must not keep a training from going on.
  DirectoryLock(const std::string& path, std::chrono::milliseconds patience);

 private:
  UniqueFd directory_;
};

}  // namespace ddprun
