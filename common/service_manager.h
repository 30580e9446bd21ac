// SPDX-License-Identifier: Apache-2.0
// A service's side of systemd's protocols, without libsystemd: state as datagrams (sd_notify(3)),
// signs of life (sd_watchdog_enabled(3)), sockets that systemd opened for it (sd_listen_fds(3)).
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/unique_fd.h"

namespace ddprun {

class ServiceManager {
 public:
  // Reads NOTIFY_SOCKET, WATCHDOG_* and LISTEN_*, and takes them out of this process' environment:
  // no child may speak for the service. Before there are threads, and before descriptors from 3 on
  // are opened. Throws Error(kInvalidArgument): one of them makes no sense.
  static ServiceManager take_from_environment();

  ServiceManager() = default;  // there is none

  // Assignments as sd_notify(3) lists them, one a line: "READY=1\nSTATUS=leads". Never waits; does
  // nothing where there is no manager.
  void tell(std::string_view assignments) const;

  // "WATCHDOG=1" is wanted within each span of this length; nullopt: it isn't.
  std::optional<std::chrono::microseconds> watchdog_limit() const { return watchdog_limit_; }

  struct PassedSocket {
    std::string name;  // of its .socket unit, or FileDescriptorName=; empty: not told
    UniqueFd fd;       // closed on exec
  };
  // In the unit's order; empty from the second call on.
  std::vector<PassedSocket> take_sockets();

 private:
  std::string notify_path_;
  UniqueFd notify_socket_;
  std::optional<std::chrono::microseconds> watchdog_limit_;
  std::vector<PassedSocket> sockets_;
};

}  // namespace ddprun
