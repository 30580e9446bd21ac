// SPDX-License-Identifier: Apache-2.0
// The least that a server can cost: one epoll_wait per batch, one recv and one send per message.
// Prints its port. `echo_server`
#include <sys/epoll.h>
#include <sys/socket.h>

#include <cstdio>

#include "common/socket.h"

int main() {
  ddprun::UniqueFd listener = ddprun::listen_on(ddprun::resolve({"127.0.0.1", 0}).front());
  std::printf("%d\n", ddprun::local_address(listener.get()).port());
  std::fflush(stdout);
  const int epoll = ::epoll_create1(EPOLL_CLOEXEC);
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = listener.get();
  ::epoll_ctl(epoll, EPOLL_CTL_ADD, listener.get(), &event);
  epoll_event events[256];
  char buffer[65536];
  for (;;) {
    const int count = ::epoll_wait(epoll, events, 256, -1);
    for (int i = 0; i < count; ++i) {
      const int fd = events[i].data.fd;
      if (fd == listener.get()) {
        event.data.fd = ::accept4(fd, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (event.data.fd >= 0) ::epoll_ctl(epoll, EPOLL_CTL_ADD, event.data.fd, &event);
        continue;
      }
      const ssize_t size = ::recv(fd, buffer, sizeof buffer, 0);
      if (size <= 0) {
        ::close(fd);
      } else {
        [[maybe_unused]] const ssize_t sent = ::send(fd, buffer, size, MSG_NOSIGNAL);
      }
    }
  }
}
