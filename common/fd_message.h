// SPDX-License-Identifier: Apache-2.0
// Messages on a Unix socket that carry a descriptor (SCM_RIGHTS).
#pragma once

#include <cstddef>
#include <string_view>

#include "common/unique_fd.h"

namespace ddprun {

// As send(2) with MSG_NOSIGNAL and MSG_DONTWAIT, together with `fd`, of which the receiver gets a
// copy; −1: none.
long send_with_fd(int socket, std::string_view bytes, int fd);

struct FdMessage {
  long size = -1;  // as recv(2) returns it; −1: see errno
  UniqueFd fd;     // the first one that came; closed on exec
  // One was sent, and this process had no room for it (ulimit -n).
  bool lost_fd = false;
};

// As recv(2) with MSG_DONTWAIT.
FdMessage receive_with_fd(int socket, char* buffer, std::size_t size);

}  // namespace ddprun
