// SPDX-License-Identifier: Apache-2.0
// Makes a ddprun program a service of systemd (docs/systemd.md). It tells systemd when the program
// serves, reloads and stops, and that its event loop runs. I/O thread only.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/service_manager.h"
#include "common/unique_fd.h"

namespace ddprun::rendezvous {

class SystemdNotifier {
 public:
  SystemdNotifier(boost::asio::io_context& io, ServiceManager manager);

  // Returns the sockets that systemd passed, made non-blocking; none: the caller must bind its own.
  // Throws Error(kInvalidArgument) if one of them is no listening TCP socket.
  std::vector<UniqueFd> take_listeners();

  // Called once, when the program serves. `status` is called with each sign of life, for `systemctl
  // status`.
  void ready(std::function<std::string()> status);
  void reloading();
  void reloaded() { tell_ready(); }
  void stopping() { manager_.tell("STOPPING=1\nSTATUS=stopping"); }

 private:
  void tell_ready();
  void wait_for_watchdog();

  ServiceManager manager_;
  boost::asio::steady_timer watchdog_timer_;
  std::optional<std::chrono::microseconds> watchdog_period_;
  std::function<std::string()> status_;
};

}  // namespace ddprun::rendezvous
