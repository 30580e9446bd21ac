// SPDX-License-Identifier: Apache-2.0
#include "agent/warden_process.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/wait.h>

#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <thread>

#include "common/socket.h"
#include "tests/agent/group_fixture.h"

namespace ddprun::agent {
namespace {

namespace asio = boost::asio;

struct WardenHost {
  std::shared_ptr<WardenProcess> launch() {
    WardenProcess::Events events;
    events.gone = [this](int) { ++num_gone; };
    return WardenProcess::launch(io, WardenProcess::default_path(), {}, std::move(events));
  }

  asio::io_context io;
  int num_gone = 0;
};

bool ends(const UniqueFd& pidfd, std::chrono::milliseconds limit) {
  return wait_ready(pidfd.get(), POLLIN, Deadline::after(limit));
}

// The next event of this kind about a child. The agent handles SIGCHLD, which doesn't end the wait.
siginfo_t news_of(pid_t pid, int options) {
  siginfo_t news{};
  int result = 0;
  do {
    result = ::waitid(P_PID, static_cast<id_t>(pid), &news, options);
  } while (result < 0 && errno == EINTR);
  REQUIRE(result == 0);
  return news;
}

}  // namespace

// Asio keeps one state per descriptor and uses it again after a close. An event of the closed
// descriptor may have been fetched already. It then wakes the state's new owner: in this test the
// pidfd of a living warden.
TEST_CASE(
    "warden process: a wake-up that was meant for an earlier warden doesn't block the agent") {
  WardenHost host;
  asio::posix::stream_descriptor filler(host.io, ::eventfd(0, EFD_CLOEXEC));
  const auto first = host.launch();
  const UniqueFd first_end = open_pidfd(first->pid());
  host.io.poll();
  REQUIRE(::kill(first->pid(), SIGKILL) == 0);
  REQUIRE(ends(first_end, kPatience));

  std::shared_ptr<WardenProcess> second;
  asio::post(host.io, [&] {  // runs when the events of the first warden are fetched
    first->hang_up();
    filler.close();
    second = host.launch();
  });
  // A call that would block ends when the living warden does.
  std::thread watchdog;
  const UniqueFd done(::eventfd(0, EFD_CLOEXEC));
  bool blocked = false;
  host.io.poll_one();
  REQUIRE(second);
  watchdog = std::thread([&] {
    blocked = !ends(done, std::chrono::seconds{5});
    if (blocked) ::kill(second->pid(), SIGKILL);
  });
  host.io.poll();
  ::eventfd_write(done.get(), 1);
  watchdog.join();
  CHECK_FALSE(blocked);
  CHECK(host.num_gone == 1);

  const UniqueFd second_end = open_pidfd(second->pid());
  second->hang_up();
  REQUIRE(ends(second_end, kPatience));
  host.io.restart();
  host.io.run_for(kPatience);
  CHECK(host.num_gone == 2);
}

TEST_CASE("warden process: one that is stopped is continued at once") {
  WardenHost host;
  const auto warden = host.launch();
  host.io.poll();
  for (int i = 0; i < 2; ++i) {
    CAPTURE(i);
    REQUIRE(::kill(warden->pid(), SIGSTOP) == 0);
    news_of(warden->pid(), WSTOPPED | WNOWAIT);
    siginfo_t news{};
    asio::steady_timer limit(host.io, kPatience);
    limit.async_wait([](const boost::system::error_code&) {});
    while (limit.expiry() > std::chrono::steady_clock::now() && news.si_pid == 0) {
      host.io.run_one_for(std::chrono::milliseconds{20});
      news = news_of(warden->pid(), WCONTINUED | WNOHANG);
    }
    CHECK(news.si_code == CLD_CONTINUED);
  }
  const UniqueFd end = open_pidfd(warden->pid());
  warden->hang_up();
  REQUIRE(ends(end, kPatience));
  host.io.restart();
  host.io.run_for(kPatience);
  CHECK(host.num_gone == 1);
}

}  // namespace ddprun::agent
