// SPDX-License-Identifier: Apache-2.0
// Makes a ddprun program a service of systemd (docs/systemd.md). It tells systemd when the program
// serves, reloads and stops, and that its event loop runs. I/O thread only.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
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
  // From now on SIGHUP, SIGUSR1 and SIGUSR2 don't end the program, and so every job: a terminal
  // that closes sends SIGHUP, and a scheduler may send the others to all processes of a node.
  // `reload` is called at each SIGHUP; it returns whether there were files to read again. If it
  // throws Error, what was read before stays in force. `goes_on` is what the program does after a
  // signal, for the log. Called once.
  void outlive_signals(std::string goes_on, std::function<bool()> reload);
  void stopping() { manager_.tell("STOPPING=1\nSTATUS=stopping"); }

 private:
  void tell_ready();
  void reload();
  void wait_for_watchdog();

  ServiceManager manager_;
  boost::asio::signal_set outlived_, hang_up_;
  std::string goes_on_;
  std::function<bool()> reload_;
  boost::asio::steady_timer watchdog_timer_;
  std::optional<std::chrono::microseconds> watchdog_period_;
  std::function<std::string()> status_;
};

}  // namespace ddprun::rendezvous
