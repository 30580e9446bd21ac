// SPDX-License-Identifier: Apache-2.0
// Listening where another process may listen already.
#pragma once

#include "common/socket.h"

namespace ddprun {

// As listen_on(). Error(kUnavailable) names the process that has the port already, as far as /proc
// shows it to this user. An example: "can't listen on 127.0.0.1:29500: in use by python3, pid
// 4711".
UniqueFd listen_or_name_holder(const SocketAddress& address);

}  // namespace ddprun
