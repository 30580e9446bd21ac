// SPDX-License-Identifier: Apache-2.0
#include "common/service_manager.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "common/error.h"
#include "common/parsed_number.h"
#include "common/text.h"

namespace ddprun {
namespace {

constexpr int kFirstPassed = 3;  // SD_LISTEN_FDS_START
constexpr std::uint64_t kMostPassed = 1024;

std::string take_variable(const char* name) {
  const char* value = std::getenv(name);
  std::string taken = value == nullptr ? "" : value;
  ::unsetenv(name);
  return taken;
}

// Parses the number in variable `name`; throws if `text`, its value, is none.
std::uint64_t number_of(const char* name, const std::string& text) {
  if (const auto number = parsed_number<std::uint64_t>(text)) return *number;
  throw Error(ErrorCode::kInvalidArgument, concat(name, "='", text, "' is no number"));
}

// Whether a variable with this process id is meant for this process; without an id it is.
bool is_for_us(const char* name, const std::string& pid) {
  return pid.empty() || number_of(name, pid) == static_cast<std::uint64_t>(::getpid());
}

std::vector<ServiceManager::PassedSocket> take_passed(std::uint64_t number,
                                                      std::string_view names) {
  std::vector<ServiceManager::PassedSocket> passed;
  for (std::uint64_t i = 0; i < number; ++i) {
    const int fd = kFirstPassed + static_cast<int>(i);
    if (::fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) {
      throw Error(ErrorCode::kInvalidArgument,
                  concat("LISTEN_FDS=", number, ": descriptor ", fd,
                         " is not open; who starts this program passes so many sockets, from ",
                         kFirstPassed, " on, or unsets it"));
    }
    passed.push_back({std::string(take_until(names, ":")), UniqueFd(fd)});
  }
  return passed;
}

}  // namespace

ServiceManager ServiceManager::take_from_environment() {
  ServiceManager manager;
  manager.notify_path_ = take_variable("NOTIFY_SOCKET");
  const std::string watchdog_usec = take_variable("WATCHDOG_USEC");
  const std::string watchdog_pid = take_variable("WATCHDOG_PID");
  const std::string listen_fds = take_variable("LISTEN_FDS");
  const std::string listen_pid = take_variable("LISTEN_PID");
  const std::string names = take_variable("LISTEN_FDNAMES");

  // systemd always says for which process the sockets are. Without that they are another program's.
  if (!listen_fds.empty() && !listen_pid.empty() && is_for_us("LISTEN_PID", listen_pid)) {
    const std::uint64_t number = number_of("LISTEN_FDS", listen_fds);
    if (number > kMostPassed) {
      throw Error(ErrorCode::kInvalidArgument,
                  concat("LISTEN_FDS=", number, ": at most ", kMostPassed, " can be"));
    }
    manager.sockets_ = take_passed(number, names);
  }
  if (!watchdog_usec.empty() && is_for_us("WATCHDOG_PID", watchdog_pid)) {
    const std::uint64_t limit = number_of("WATCHDOG_USEC", watchdog_usec);
    if (limit > 0) manager.watchdog_limit_ = std::chrono::microseconds(limit);
  }
  if (manager.notify_path_.empty()) return manager;
  const bool has_form = manager.notify_path_[0] == '/' || manager.notify_path_[0] == '@';
  if (!has_form || manager.notify_path_.size() >= sizeof(sockaddr_un::sun_path)) {
    throw Error(ErrorCode::kInvalidArgument,
                concat("NOTIFY_SOCKET='", manager.notify_path_,
                       "' is neither a path nor an abstract name (@…) of a Unix socket"));
  }
  manager.notify_socket_.reset(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!manager.notify_socket_) throw_system_error("socket(AF_UNIX)", errno);
  return manager;
}

// Errors are ignored: a manager that is gone, or reads nothing, is no reason to stop serving.
void ServiceManager::tell(std::string_view assignments) const {
  if (!notify_socket_) return;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, notify_path_.data(), notify_path_.size());
  if (address.sun_path[0] == '@') address.sun_path[0] = '\0';
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + notify_path_.size());
  (void)::sendto(notify_socket_.get(), assignments.data(), assignments.size(), MSG_NOSIGNAL,
                 reinterpret_cast<const sockaddr*>(&address), size);
}

std::vector<ServiceManager::PassedSocket> ServiceManager::take_sockets() {
  return std::exchange(sockets_, {});
}

}  // namespace ddprun
