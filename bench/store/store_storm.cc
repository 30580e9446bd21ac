// SPDX-License-Identifier: Apache-2.0
// The start of a large job: `store_storm PORT PID RANKS` plays RANKS workers that connect, shake
// hands, ADD to the join counter, exchange a 128-byte id (rank 0 SETs it, the others WAIT and GET)
// and meet in a BARRIER. Prints one JSON line: the time from the first connect to the last rank's
// release, and the server's CPU time.
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "bench/store/bench_client.h"
#include "common/process_facts.h"

using namespace ddprun;
using namespace ddprun::bench;

namespace {

// At most so many ranks whose handshake has no answer yet: fewer than any server's backlog, so that
// nothing is dropped and the figure is the server's, not TCP's one-second retransmission.
constexpr int kMaxUnanswered = 256;

constexpr std::size_t kIdBytes = 128;

struct Step {
  std::string request;
  std::size_t reply_bytes;
};

// What a rank does, one step after the other.
std::vector<Step> steps_of(bool rank_0, int num_ranks) {
  std::vector<Step> steps = {{kHandshakeBytes, kHandshakeReplyBytes},
                             {bytes_of(store::Opcode::kAdd, "init/", "", 1), 8}};
  const std::string barrier = bytes_of(store::Opcode::kBarrier, "/barrier", "", num_ranks);
  if (rank_0) {
    const std::string id(kIdBytes, 'i');
    steps.push_back({bytes_of(store::Opcode::kSet, "/id", id) + barrier, 1});
  } else {
    steps.push_back({bytes_of_keys(store::Opcode::kWait, {"/id"}), 1});
    steps.push_back({bytes_of(store::Opcode::kGet, "/id"), 8 + kIdBytes});
    steps.push_back({barrier, 1});
  }
  return steps;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) die("usage: store_storm PORT PID RANKS");
  const int port = std::atoi(argv[1]), pid = std::atoi(argv[2]), num_ranks = std::atoi(argv[3]);
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur < static_cast<rlim_t>(num_ranks) + 16) {
    die("the hard limit of open files is " + std::to_string(limit.rlim_cur));
  }

  struct Rank {
    UniqueFd fd;
    std::size_t step = 0;
    std::size_t missing_bytes = 0;
    bool connecting = true;
  };
  const std::vector<Step> first = steps_of(true, num_ranks), others = steps_of(false, num_ranks);
  std::vector<Rank> ranks(static_cast<std::size_t>(num_ranks));
  const int epoll = ::epoll_create1(EPOLL_CLOEXEC);
  // What a rank does before it connects isn't the server's time.
  for (Rank& rank : ranks) rank.fd = make_nonblocking();
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  const double cpu_before = cpu_seconds(pid);

  int num_started = 0, num_unanswered = 0, num_done = 0;

  char buffer[65536];
  epoll_event events[512];
  while (num_done < num_ranks) {
    while (num_started < num_ranks && num_unanswered < kMaxUnanswered) {
      // The last to come is rank 0, so that all others wait for its id.
      Rank& rank = ranks[static_cast<std::size_t>(num_started)];
      connect_to(rank.fd.get(), port);
      epoll_event event{};
      event.events = EPOLLIN | EPOLLOUT | EPOLLET;
      event.data.u32 = static_cast<std::uint32_t>(num_started);
      ::epoll_ctl(epoll, EPOLL_CTL_ADD, rank.fd.get(), &event);
      ++num_started;
      ++num_unanswered;
    }
    const int count = ::epoll_wait(epoll, events, 512, 30'000);
    if (count <= 0) die("no progress for 30 s");
    for (int i = 0; i < count; ++i) {
      Rank& rank = ranks[events[i].data.u32];
      const bool rank_0 = events[i].data.u32 == static_cast<std::uint32_t>(num_ranks - 1);
      const std::vector<Step>& steps = rank_0 ? first : others;
      if (rank.connecting) {
        rank.connecting = false;
      } else {
        if (!(events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR))) continue;
        const ssize_t received = ::recv(rank.fd.get(), buffer, sizeof buffer, 0);
        if (received <= 0) die("the server closed a connection");
        rank.missing_bytes -= static_cast<std::size_t>(received);
        if (rank.missing_bytes > 0) continue;
        if (rank.step == 0) --num_unanswered;
        if (++rank.step == steps.size()) {
          if (++num_done == num_ranks) break;
          continue;
        }
      }
      send_bytes(rank.fd.get(), steps[rank.step].request);
      rank.missing_bytes = steps[rank.step].reply_bytes;
    }
  }
  const double elapsed = std::chrono::duration<double>(Clock::now() - start).count();
  const double cpu = cpu_seconds(pid) - cpu_before;

  std::printf(
      "{\"ranks\": %d, \"seconds\": %.3f, \"server_cpu_seconds\": %.3f, "
      "\"server_resident_bytes\": %zu}\n",
      num_ranks, elapsed, cpu, resident_bytes(pid).value_or(0));
  return 0;
}
