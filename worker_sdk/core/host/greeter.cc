// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/host/greeter.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstddef>

#include "common/error.h"
#include "common/log.h"
#include "common/socket.h"

namespace ddprun::host {
namespace {

constexpr auto kHelloTime = std::chrono::seconds{5};
constexpr auto kRestTime = std::chrono::milliseconds{100};
constexpr std::size_t kMaxPending = 256;  // beyond this the oldest is dropped

// Takes constant time, so that the time of an answer reveals nothing of the token.
bool same_token(const Token& a, const Token& b) {
  unsigned difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i) difference |= static_cast<unsigned>(a[i] ^ b[i]);
  return difference == 0;
}

}  // namespace

void Greeter::append_polls(std::vector<pollfd>& polls) const {
  if (Clock::now() >= rest_until_) {
    polls.push_back({.fd = listener_.get(), .events = POLLIN, .revents = 0});
  }
  for (const Pending& pending : pending_) {
    polls.push_back({.fd = pending.fd.get(), .events = POLLIN, .revents = 0});
  }
}

int Greeter::poll_timeout_ms() const {
  if (Clock::now() < rest_until_) return 100;
  return pending_.empty() ? -1 : pending_.front().until.poll_timeout_ms();
}

void Greeter::accept_waiting() {
  if (Clock::now() < rest_until_) return;
  for (;;) {
    UniqueFd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno != EAGAIN && errno != EWOULDBLOCK) {
        log_warning("host communicator: can't accept a connection: ", errno_text(errno));
        rest_until_ = Clock::now() + kRestTime;
      }
      return;
    }
    const int one = 1;
    ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);  // no effect on unix
    if (pending_.size() >= kMaxPending) pending_.pop_front();
    pending_.push_back({std::move(fd), Deadline::after(kHelloTime), 0, {}});
  }
}

Greeter::Verdict Greeter::read_hello(Pending& pending) {
  auto* bytes = reinterpret_cast<std::byte*>(&pending.hello);
  while (pending.received < sizeof(Hello)) {
    const SocketStep step =
        receive_step(pending.fd.get(), bytes + pending.received, sizeof(Hello) - pending.received);
    if (!step.ended.empty()) return Verdict::kDrop;
    if (step.num_bytes == 0) return pending.until.expired() ? Verdict::kDrop : Verdict::kMore;
    pending.received += step.num_bytes;
  }
  const Hello& hello = pending.hello;
  const bool ours = hello.magic == Hello{}.magic && same_token(hello.token, token_) &&
                    hello.to == rank_ && hello.from >= 0 && hello.from != rank_;
  return ours ? Verdict::kAccept : Verdict::kDrop;
}

std::vector<Arrival> Greeter::collect() {
  accept_waiting();
  std::vector<Arrival> arrivals;
  for (auto entry = pending_.begin(); entry != pending_.end();) {
    const Verdict verdict = read_hello(*entry);
    if (verdict == Verdict::kAccept) arrivals.push_back({std::move(entry->fd), entry->hello});
    entry = verdict == Verdict::kMore ? entry + 1 : pending_.erase(entry);
  }
  return arrivals;
}

std::optional<Arrival> Greeter::accept_one(Deadline deadline, const std::vector<pollfd>& others) {
  for (;;) {
    for (Arrival& arrival : collect()) ready_.push_back(std::move(arrival));
    if (!ready_.empty()) {
      Arrival arrival = std::move(ready_.front());
      ready_.pop_front();
      return arrival;
    }
    if (deadline.expired()) return std::nullopt;
    std::vector<pollfd> polls = others;
    append_polls(polls);
    int timeout = deadline.poll_timeout_ms();
    if (const int own = poll_timeout_ms(); own >= 0) timeout = std::min(timeout, own);
    ::poll(polls.data(), polls.size(), timeout);
    for (std::size_t i = 0; i < others.size(); ++i) {
      if (polls[i].revents != 0) return std::nullopt;
    }
  }
}

}  // namespace ddprun::host
