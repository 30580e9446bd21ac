// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <poll.h>
#include <sys/socket.h>

#include "common/clock.h"
#include "common/error.h"
#include "common/socket.h"
#include "common/unique_fd.h"

namespace ddprun {

// Accepts one connection. Throws Error(kTimeout).
inline UniqueFd accept_from(int listener, Deadline deadline) {
  if (!wait_ready(listener, POLLIN, deadline)) {
    throw Error(ErrorCode::kTimeout, "no connection arrived before the deadline");
  }
  return UniqueFd(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
}

}  // namespace ddprun
