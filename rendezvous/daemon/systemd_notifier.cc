// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/daemon/systemd_notifier.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <csignal>
#include <filesystem>
#include <utility>

#include "common/clock.h"
#include "common/log.h"
#include "common/signal_names.h"
#include "common/text.h"
#include "common/throw_error.h"
#include "rendezvous/asio/signals.h"
#include "rendezvous/asio/waits.h"

namespace ddprun::rendezvous {
namespace {

// Returns the option's value; -1: `fd` is no socket.
int socket_option(int fd, int option) {
  int value = 0;
  socklen_t size = sizeof(value);
  return ::getsockopt(fd, SOL_SOCKET, option, &value, &size) == 0 ? value : -1;
}

bool is_tcp_listener(int fd) {
  const int domain = socket_option(fd, SO_DOMAIN);
  return (domain == AF_INET || domain == AF_INET6) &&
         socket_option(fd, SO_PROTOCOL) == IPPROTO_TCP && socket_option(fd, SO_ACCEPTCONN) == 1;
}

// Returns "a UDP socket", "/etc/passwd" or "pipe:[4711]".
std::string kind_of(int fd) {
  if (socket_option(fd, SO_ACCEPTCONN) < 0) {
    std::error_code error;
    const auto name = std::filesystem::read_symlink(concat("/proc/self/fd/", fd), error);
    return error ? "no socket" : one_line(name.string());
  }
  const int domain = socket_option(fd, SO_DOMAIN);
  if (domain == AF_UNIX) return "a Unix socket";
  if (domain != AF_INET && domain != AF_INET6) return concat("a socket of family ", domain);
  if (socket_option(fd, SO_TYPE) != SOCK_STREAM) return "a UDP socket";
  return "a TCP socket that is connected, or only bound";
}

}  // namespace

SystemdNotifier::SystemdNotifier(boost::asio::io_context& io, ServiceManager manager)
    : manager_(std::move(manager)), outlived_(io), hang_up_(io), watchdog_timer_(io) {
  // Twice in each watchdog period, so that a late message does no harm.
  if (manager_.watchdog_limit()) watchdog_period_ = *manager_.watchdog_limit() / 2;
}

std::vector<UniqueFd> SystemdNotifier::take_listeners() {
  std::vector<UniqueFd> listeners;
  for (auto& passed : manager_.take_sockets()) {
    const int fd = passed.fd.get();
    if (!is_tcp_listener(fd)) {
      throw_invalid("LISTEN_FDS: descriptor ", fd,
                    passed.name.empty() ? "" : " ('" + one_line(passed.name) + "')", " is ",
                    kind_of(fd),
                    ", and no TCP socket that listens: the .socket unit needs "
                    "ListenStream=HOST:PORT and Accept=no");
    }
    if (::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK) != 0) {
      throw_system_error("fcntl(O_NONBLOCK)", errno);
    }
    listeners.push_back(std::move(passed.fd));
  }
  return listeners;
}

void SystemdNotifier::ready(std::function<std::string()> status) {
  status_ = std::move(status);
  tell_ready();
  wait_for_watchdog();
}

void SystemdNotifier::tell_ready() {
  manager_.tell(concat("READY=1\nSTATUS=", one_line(status_())));
}

void SystemdNotifier::outlive_signals(std::string goes_on, std::function<bool()> reload) {
  goes_on_ = std::move(goes_on);
  reload_ = std::move(reload);
  hang_up_.add(SIGHUP);
  for (const int number : {SIGUSR1, SIGUSR2}) outlived_.add(number);
  on_each_signal(hang_up_, [this](int) { this->reload(); });
  on_each_signal(outlived_, [this](int number) {
    log_info("got ", signal_name(number), ": ", goes_on_, " (SIGTERM ends it)");
  });
}

void SystemdNotifier::reload() {
  // systemd orders reloads by this time; before version 253 it ignores the time.
  const auto now = Clock::now().time_since_epoch();
  manager_.tell(concat("RELOADING=1\nMONOTONIC_USEC=",
                       std::chrono::duration_cast<std::chrono::microseconds>(now).count()));
  try {
    log_info("got SIGHUP: ", reload_() ? "the token and the certificates are read again"
                                       : concat("no file to read again; ", goes_on_));
  } catch (const Error& error) {
    log_error("got SIGHUP: ", error.what(), "; what was read before stays in force");
  }
  tell_ready();
}

void SystemdNotifier::wait_for_watchdog() {
  if (!watchdog_period_) return;
  run_after(watchdog_timer_, *watchdog_period_, [this] {
    manager_.tell(concat("WATCHDOG=1\nSTATUS=", one_line(status_())));
    wait_for_watchdog();
  });
}

}  // namespace ddprun::rendezvous
