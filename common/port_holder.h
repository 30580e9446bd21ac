// SPDX-License-Identifier: Apache-2.0
// Listens on a port, and names the process that listens there already.
#pragma once

#include "common/socket.h"

namespace ddprun {

// Does the same as listen_on(). Its Error(kUnavailable) names the process that has the port
// already, if /proc shows it to this user. An example: "can't listen on 127.0.0.1:29500: in use by
// python3, pid 4711".
UniqueFd listen_or_name_holder(const SocketAddress& address);
// The message has this before the name.
inline constexpr char kInUseBy[] = ": in use by ";

}  // namespace ddprun
