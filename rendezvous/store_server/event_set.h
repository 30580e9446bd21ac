// SPDX-License-Identifier: Apache-2.0
// The epoll set of a server's sockets. io thread only.
#pragma once

#include <sys/epoll.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cstdint>
#include <span>
#include <utility>

namespace ddprun::store {

// Names a connection for later, when it may have gone and its descriptor be another's.
struct Handle {
  int fd = -1;                   // of a listener: its index
  std::uint32_t generation = 0;  // 0: a listener
};

// Level-triggered, and only its own descriptor is known to Asio. A wake-up takes a batch of events
// with one call, where Asio's own sockets would cost an epoll_ctl or a fruitless recv per request.
class EventSet {
 public:
  explicit EventSet(boost::asio::io_context& io);

  // `fd`'s events come as `handle`'s. False: errno.
  bool add(int fd, Handle handle, std::uint32_t events);
  void change(int fd, Handle handle, std::uint32_t events);
  void remove(int fd);

  // Calls `ready` with an error code, once, when there are events.
  template <typename Ready>
  void async_wait(Ready ready) {
    descriptor_.async_wait(boost::asio::posix::descriptor_base::wait_read, std::move(ready));
  }
  // Those that there are now.
  std::span<const epoll_event> take(std::span<epoll_event> room);

  static Handle handle_of(const epoll_event& event) {
    return {static_cast<int>(event.data.u64), static_cast<std::uint32_t>(event.data.u64 >> 32)};
  }

 private:
  boost::asio::posix::stream_descriptor descriptor_;
};

}  // namespace ddprun::store
