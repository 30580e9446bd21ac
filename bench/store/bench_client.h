// SPDX-License-Identifier: Apache-2.0
// Shared by the store's load programs: connections, protocol bytes, figures of another process.
// Aborts with a message if something fails: a benchmark has nothing to recover.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "common/unique_fd.h"

namespace ddprun::bench {

[[noreturn]] void die(const std::string& message);

// User and system time of the process so far, in seconds (/proc/PID/stat: ticks of 10 ms).
double cpu_seconds(int pid);

// A blocking connection to 127.0.0.1:port, TCP_NODELAY, closed by reset so that no port lingers.
UniqueFd connect_blocking(int port);

// The same in two steps, non-blocking. The first makes a socket that only has to be connected. The
// second connects, which may still be under way when it returns.
UniqueFd make_nonblocking();
void connect_to(int fd, int port);

// All of it, on a blocking socket.
void send_bytes(int fd, std::string_view bytes);
void receive_bytes(int fd, std::size_t size);

// VALIDATE and PING, and its answer.
void shake_hands(int fd);
std::vector<std::string> handshake_requests();
inline constexpr std::size_t kHandshakeReplyBytes = 4;

}  // namespace ddprun::bench
