// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/store_server/event_set.h"

#include <cerrno>

#include "common/error.h"
#include "common/unique_fd.h"

namespace ddprun::store {
namespace {

UniqueFd make_epoll() {
  UniqueFd fd(::epoll_create1(EPOLL_CLOEXEC));
  if (!fd) throw_system_error("epoll_create1", errno);
  return fd;
}

epoll_event make_event(Handle handle, std::uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = (std::uint64_t{handle.generation} << 32) | static_cast<std::uint32_t>(handle.fd);
  return event;
}

}  // namespace

EventSet::EventSet(boost::asio::io_context& io) : descriptor_(io, make_epoll().release()) {}

bool EventSet::add(int fd, Handle handle, std::uint32_t events) {
  epoll_event event = make_event(handle, events);
  return ::epoll_ctl(descriptor_.native_handle(), EPOLL_CTL_ADD, fd, &event) == 0;
}

void EventSet::change(int fd, Handle handle, std::uint32_t events) {
  epoll_event event = make_event(handle, events);
  ::epoll_ctl(descriptor_.native_handle(), EPOLL_CTL_MOD, fd, &event);
}

void EventSet::remove(int fd) {
  ::epoll_ctl(descriptor_.native_handle(), EPOLL_CTL_DEL, fd, nullptr);
}

std::span<const epoll_event> EventSet::take(std::span<epoll_event> room) {
  const int count =
      ::epoll_wait(descriptor_.native_handle(), room.data(), static_cast<int>(room.size()), 0);
  return room.first(count < 0 ? 0 : static_cast<std::size_t>(count));
}

}  // namespace ddprun::store
