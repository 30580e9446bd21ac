// SPDX-License-Identifier: Apache-2.0
// While this object lives, no file of this process grows beyond a size. A write beyond that size
// fails with EFBIG, as if the disk were full.
#pragma once

#include <sys/resource.h>

#include <csignal>

#include "tests/support/catch.h"

namespace ddprun::test {

class FullDisk {
 public:
  explicit FullDisk(rlim_t bytes) {
    std::signal(SIGXFSZ, SIG_IGN);
    REQUIRE(::getrlimit(RLIMIT_FSIZE, &before_) == 0);
    const rlimit limit{bytes, before_.rlim_max};
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &limit) == 0);
  }
  ~FullDisk() { ::setrlimit(RLIMIT_FSIZE, &before_); }
  FullDisk(const FullDisk&) = delete;
  FullDisk& operator=(const FullDisk&) = delete;

 private:
  rlimit before_{};
};

}  // namespace ddprun::test
