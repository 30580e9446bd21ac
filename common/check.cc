// SPDX-License-Identifier: Apache-2.0
#include "common/check.h"

#include <cstdio>
#include <cstdlib>

namespace ddprun::internal {

void check_failed(const char* file, int line, const char* condition) {
  std::fprintf(stderr, "ddprun: internal error at %s:%d: %s\n", file, line, condition);
  std::abort();
}

}  // namespace ddprun::internal
