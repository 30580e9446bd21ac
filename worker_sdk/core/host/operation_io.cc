// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/host/operation_io.h"

#include <cerrno>

#include "common/socket.h"
#include "common/text.h"
#include "common/throw_error.h"

namespace ddprun::host {
namespace {

using std::chrono::milliseconds;

// Longest time that a try to connect takes without a check: news of a failure must reach the caller
// within a second, kGrace included.
constexpr auto kConnectSlice = milliseconds{400};
constexpr auto kLongestConnectSlice = milliseconds{4'000};
// Time for the news of a failure to come round the nodes, before a closed connection itself is
// taken as the failure.
constexpr auto kGrace = milliseconds{400};

}  // namespace

void OperationIo::check(int rank, const Call& call) {
  group_.throw_if_failed(call.text());
  look();
  if (!call.deadline.expired()) return;
  group_.throw_timeout(concat("rank ", rank, " on another node",
                              call.is_collective() ? ", or for a rank that it waits for" : ""),
                       call, rank);
}

void OperationIo::wait(std::vector<pollfd>& polls, int rank, const Call& call) {
  const auto left = std::chrono::ceil<milliseconds>(call.deadline.remaining());
  const int timeout = static_cast<int>(std::min(left, kLook).count());
  group_.own_control().waits_for.store(rank + 1, std::memory_order_relaxed);
  const int ready = ::poll(polls.data(), polls.size(), timeout);
  // A peer that sends little by little is always ready, but must not keep the call beyond its
  // deadline.
  if (ready <= 0 || call.deadline.expired()) check(rank, call);
  group_.own_control().waits_for.store(0, std::memory_order_relaxed);
}

void OperationIo::send_all(int fd, const void* data, std::size_t size, int rank, const Call& call) {
  const auto* next = static_cast<const std::byte*>(data);
  std::vector<pollfd> polls{{.fd = fd, .events = POLLOUT, .revents = 0}};
  while (size > 0) {
    const SocketStep step = send_step(fd, next, size);
    if (!step.ended.empty()) connection_ended(rank, step.ended, call);
    if (step.num_bytes == 0) wait(polls, rank, call);
    next += step.num_bytes;
    size -= step.num_bytes;
  }
}

void OperationIo::receive_all(int fd, void* data, std::size_t size, int rank, const Call& call) {
  auto* next = static_cast<std::byte*>(data);
  std::vector<pollfd> polls{{.fd = fd, .events = POLLIN, .revents = 0}};
  while (size > 0) {
    const SocketStep step = receive_step(fd, next, size);
    if (!step.ended.empty()) connection_ended(rank, step.ended, call);
    if (step.num_bytes == 0) wait(polls, rank, call);
    next += step.num_bytes;
    size -= step.num_bytes;
  }
}

UniqueFd OperationIo::open(const Endpoint& endpoint, const Hello& hello, const Call& call) {
  Clock::duration patience = kConnectSlice;
  for (;;) {
    std::string failure;
    bool refused = true;
    try {
      for (const SocketAddress& address : resolve(endpoint)) {
        const Deadline slice =
            Deadline::after(std::min<Clock::duration>(call.deadline.remaining(), patience));
        UniqueFd fd;
        const int error = connect_once(address, slice, &fd);
        if (fd) {
          send_all(fd.get(), &hello, sizeof hello, hello.to, call);
          return fd;
        }
        refused = refused && (error == ECONNREFUSED || error == ECONNRESET);
        failure = concat(address.text(), ": ", errno_text(error));
      }
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kUnavailable) throw;
      refused = false;
      failure = error.what();
    }
    if (refused) connection_ended(hello.to, failure, call);
    group_.throw_if_failed(call.text());
    look();
    if (call.deadline.expired()) {
      throw_error(ErrorCode::kUnavailable, "rank ", hello.to, ": can't connect to ", failure);
    }
    ::poll(nullptr, 0, static_cast<int>(kLook.count()));
    // Each try is longer: some networks are slow, and a lost packet is sent again only after 1 s.
    patience = std::min<Clock::duration>(patience * 2, kLongestConnectSlice);
  }
}

UniqueFd OperationIo::take(ArrivalBook& arrivals, int rank, Purpose purpose, int index,
                           const Call& call) {
  for (;;) {
    if (auto fd = arrivals.take(rank, purpose, index, kLook)) return std::move(*fd);
    check(rank, call);
  }
}

void OperationIo::await_failure(const Call& call) {
  const Deadline grace = Deadline::after(kGrace);
  while (!group_.failed() && !grace.expired()) {
    look();
    ::poll(nullptr, 0, 1);
  }
  group_.throw_if_failed(call.text());
}

void OperationIo::connection_ended(int rank, const std::string& how, const Call& call) {
  await_failure(call);
  group_.post_failure(FailureKind::kRankLost, rank, "its connection ended: " + how);
  group_.throw_if_failed(call.text());
  throw_error(ErrorCode::kPeerLost, "rank ", rank, " was lost during ", call.text());
}

}  // namespace ddprun::host
