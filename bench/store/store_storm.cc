// SPDX-License-Identifier: Apache-2.0
// The start of a large job: `store_storm PORT PID RANKS` plays RANKS workers (storm.h), each with a
// connection of its own. Prints one JSON line: the time from the first connect to the last rank's
// release, and the CPU time of the server, process PID.
#include <sys/epoll.h>
#include <sys/socket.h>

#include <cstdint>
#include <cstdlib>
#include <vector>

#include "bench/store/bench_client.h"
#include "bench/store/storm.h"

using namespace ddprun;
using namespace ddprun::bench;

namespace {

// At most so many ranks have a handshake without an answer. They are fewer than any server's
// backlog, so that nothing is dropped. So the figure is the server's, not TCP's one-second
// retransmission.
constexpr int kMaxUnanswered = 256;

struct Worker {
  UniqueFd fd;
  StormRank rank;
  bool connecting = true;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) die("usage: store_storm PORT PID RANKS");
  const int port = std::atoi(argv[1]), pid = std::atoi(argv[2]), num_ranks = std::atoi(argv[3]);
  need_files(num_ranks + 16);
  const StormSteps steps(num_ranks);
  std::vector<Worker> workers;
  const int epoll = ::epoll_create1(EPOLL_CLOEXEC);
  // The ranks are made before the clock starts: that isn't the server's time. Rank 0 comes last, so
  // that all others wait for its id.
  for (int i = 0; i < num_ranks; ++i) {
    workers.push_back({make_nonblocking(), StormRank(steps.of(i == num_ranks - 1))});
  }
  const StormClock clock(pid);

  int num_started = 0, num_unanswered = 0, num_done = 0;

  char buffer[65536];
  epoll_event events[512];
  while (num_done < num_ranks) {
    while (num_started < num_ranks && num_unanswered < kMaxUnanswered) {
      const int fd = workers[static_cast<std::size_t>(num_started)].fd.get();
      connect_to(fd, port);
      epoll_event event{};
      event.events = EPOLLIN | EPOLLOUT | EPOLLET;
      event.data.u32 = static_cast<std::uint32_t>(num_started);
      ::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
      ++num_started;
      ++num_unanswered;
    }
    const int count = ::epoll_wait(epoll, events, 512, 30'000);
    if (count <= 0) die("no progress for 30 s");
    for (int i = 0; i < count; ++i) {
      auto& [fd, rank, connecting] = workers[events[i].data.u32];
      if (connecting) {
        connecting = false;
      } else {
        if (!(events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR))) continue;
        const ssize_t received = ::recv(fd.get(), buffer, sizeof buffer, 0);
        if (received <= 0) die("the server closed a connection");
        const bool was_first = rank.is_first_step();
        if (!rank.received(static_cast<std::size_t>(received))) continue;
        if (was_first) --num_unanswered;
        if (rank.is_done()) {
          if (++num_done == num_ranks) break;
          continue;
        }
      }
      send_bytes(fd.get(), rank.step().bytes);
    }
  }
  clock.print(num_ranks);
  return 0;
}
