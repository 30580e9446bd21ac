// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/store_server/file_limit.h"

#include <sys/resource.h>

namespace ddprun::store {

std::size_t initial_file_limit() {
  static const std::size_t initial = [] {  // read before the first change
    rlimit limit{};
    return ::getrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur : 0;
  }();
  return initial;
}

std::size_t raise_file_limit() {
  (void)initial_file_limit();
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  if (limit.rlim_cur < limit.rlim_max) {
    const rlim_t before = limit.rlim_cur;
    limit.rlim_cur = limit.rlim_max;
    if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) limit.rlim_cur = before;
  }
  return limit.rlim_cur;
}

}  // namespace ddprun::store
