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
  // Reads NOTIFY_SOCKET, WATCHDOG_* and LISTEN_*, and removes them from this process' environment:
  // no child may speak for the service. Must be called before there are threads, and before
  // descriptors from 3 on are opened. Throws Error(kInvalidArgument) if a value is invalid.
  static ServiceManager take_from_environment();

  ServiceManager() = default;  // there is no manager

  // Sends assignments in the form of sd_notify(3), one a line: "READY=1\nSTATUS=leads". Never
  // waits; does nothing if there is no manager.
  void tell(std::string_view assignments) const;

  // The manager wants "WATCHDOG=1" within each span of this length; nullopt: it doesn't.
  std::optional<std::chrono::microseconds> watchdog_limit() const { return watchdog_limit_; }

  struct PassedSocket {
    std::string name;  // of its .socket unit, or FileDescriptorName=; empty: unknown
    UniqueFd fd;       // closed on exec
  };
  // Returns them in the unit's order; empty from the second call on.
  std::vector<PassedSocket> take_sockets();

 private:
  std::string notify_path_;
  UniqueFd notify_socket_;
  std::optional<std::chrono::microseconds> watchdog_limit_;
  std::vector<PassedSocket> sockets_;
};

}  // namespace ddprun
