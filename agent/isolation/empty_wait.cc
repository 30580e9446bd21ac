// SPDX-License-Identifier: Apache-2.0
#include "agent/isolation/empty_wait.h"

#include <sys/inotify.h>
#include <unistd.h>

#include <array>
#include <boost/asio/post.hpp>
#include <string>
#include <utility>

#include "common/unique_fd.h"

namespace ddprun::agent {

std::shared_ptr<EmptyWait> EmptyWait::start(boost::asio::io_context& io,
                                            std::shared_ptr<const RoundCgroup> cgroup,
                                            Deadline deadline, std::function<void(bool)> done) {
  std::shared_ptr<EmptyWait> wait(new EmptyWait(io, std::move(cgroup), deadline, std::move(done)));
  wait->watch();
  return wait;
}

EmptyWait::EmptyWait(boost::asio::io_context& io, std::shared_ptr<const RoundCgroup> cgroup,
                     Deadline deadline, std::function<void(bool)> done)
    : cgroup_(std::move(cgroup)),
      deadline_(deadline),
      changes_(io),
      timer_(io),
      done_(std::move(done)) {}

// Without inotify (a limit of watches) the deadline looks once more.
void EmptyWait::watch() {
  const UniqueFd events = cgroup_->tree().open(cgroup_->directory() + "/cgroup.events");
  const std::string file = "/proc/self/fd/" + std::to_string(events.get());
  UniqueFd fd(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  if (fd && events && ::inotify_add_watch(fd.get(), file.c_str(), IN_MODIFY) >= 0) {
    changes_.assign(fd.release());
    wait_for_change();
  }
  timer_.expires_at(deadline_.at());
  timer_.async_wait([self = shared_from_this()](const boost::system::error_code& error) {
    if (!error) self->end(self->cgroup_->is_empty());
  });
  boost::asio::post(timer_.get_executor(), [self = shared_from_this()] { self->look(); });
}

void EmptyWait::wait_for_change() {
  changes_.async_wait(
      boost::asio::posix::stream_descriptor::wait_read,
      [self = shared_from_this()](const boost::system::error_code& error) {
        if (error || !self->done_) return;
        std::array<char, 4096> events;
        while (::read(self->changes_.native_handle(), events.data(), events.size()) > 0) {
        }
        self->wait_for_change();
        self->look();
      });
}

void EmptyWait::look() {
  if (cgroup_->is_empty()) end(true);
}

void EmptyWait::end(bool is_empty) {
  const auto done = std::exchange(done_, nullptr);
  abandon();
  if (done) done(is_empty);
}

void EmptyWait::abandon() {
  done_ = nullptr;
  boost::system::error_code ignored;
  timer_.cancel();
  changes_.close(ignored);
}

}  // namespace ddprun::agent
