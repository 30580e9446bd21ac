// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ctime>

namespace ddprun::test {

// Returns the CPU time that the calling thread has used, in seconds.
inline double thread_cpu_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace ddprun::test
