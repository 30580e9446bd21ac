// SPDX-License-Identifier: Apache-2.0
// ddprun-warden itself, spoken to by its protocol: whether a lease is over.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <cstring>
#include <optional>
#include <string>

#include "agent/warden/protocol.h"
#include "agent/warden_process.h"
#include "common/clock.h"
#include "tests/agent/group_fixture.h"

namespace ddprun::agent {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using warden::Report;
using warden::ReportType;
using warden::Request;
using warden::RequestType;

class RawWarden {
 public:
  RawWarden() {
    int ends[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
    socket_.reset(ends[0]);
    const UniqueFd theirs(::fcntl(ends[1], F_DUPFD_CLOEXEC, 10));
    ::close(ends[1]);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, theirs.get(), warden::kSocketFd);
    std::string name = "ddprun-warden";
    char* argv[] = {name.data(), nullptr};
    char* envp[] = {nullptr};
    const std::string path = WardenProcess::default_path();
    REQUIRE(::posix_spawn(&pid_, path.c_str(), &actions, nullptr, argv, envp) == 0);
    posix_spawn_file_actions_destroy(&actions);
    REQUIRE(hears(ReportType::kReady));
  }
  // Its workers die with it.
  ~RawWarden() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  RawWarden(const RawWarden&) = delete;
  RawWarden& operator=(const RawWarden&) = delete;

  void start_sleep() {
    constexpr char kPayload[] =
        "\0/bin/sleep\0"
        "1000";
    const UniqueFd payload(::memfd_create("payload", MFD_CLOEXEC));
    REQUIRE(::write(payload.get(), kPayload, sizeof kPayload) == sizeof kPayload);
    const UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
    const int fds[warden::kNumSpawnFds] = {payload.get(), null.get(), null.get(), null.get()};
    Request request;
    request.num_arguments = 2;
    request.payload_bytes = sizeof kPayload;
    iovec part{&request, sizeof request};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof fds)] = {};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof fds);
    std::memcpy(CMSG_DATA(header), fds, sizeof fds);
    REQUIRE(::sendmsg(socket_.get(), &message, MSG_NOSIGNAL) == sizeof request);
    REQUIRE(hears(ReportType::kStarted));
  }

  void lease(Clock::duration from_now) {
    using std::chrono::duration_cast;
    Request request;
    request.type = RequestType::kLease;
    request.lease_until_ms =
        duration_cast<milliseconds>((Clock::now() + from_now).time_since_epoch()).count();
    REQUIRE(::send(socket_.get(), &request, sizeof request, MSG_NOSIGNAL) == sizeof request);
  }

  // It stands still when this returns.
  void stop() {
    ::kill(pid_, SIGSTOP);
    int status = 0;
    REQUIRE(::waitpid(pid_, &status, WUNTRACED) == pid_);
    REQUIRE(WIFSTOPPED(status));
  }
  void go_on() { ::kill(pid_, SIGCONT); }

  // The next report is of this type and comes in time.
  bool hears(ReportType type, milliseconds limit = kPatience) {
    pollfd ready{socket_.get(), POLLIN, 0};
    if (::poll(&ready, 1, static_cast<int>(limit.count())) != 1) return false;
    Report report;
    return ::recv(socket_.get(), &report, sizeof report, 0) == sizeof report && report.type == type;
  }

 private:
  UniqueFd socket_;
  pid_t pid_ = -1;
};

}  // namespace

TEST_CASE("warden: after a standstill the newest lease counts, not the first that is read",
          "[proc]") {
  RawWarden warden;
  warden.start_sleep();
  warden.lease(seconds{60});
  warden.stop();
  for (int i = 0; i < 5; ++i) warden.lease(milliseconds{-1000 + i});  // over, each of them
  warden.lease(seconds{60});
  warden.go_on();
  CHECK_FALSE(warden.hears(ReportType::kFenced, milliseconds{300}));
  warden.lease(milliseconds{0});
  CHECK(warden.hears(ReportType::kFenced));
  CHECK(warden.hears(ReportType::kExited));
}

TEST_CASE("warden: a renewal that came while it stood still saves the lease that ended meanwhile",
          "[proc]") {
  RawWarden warden;
  warden.start_sleep();
  warden.lease(milliseconds{100});
  warden.stop();
  warden.lease(seconds{60});
  ::poll(nullptr, 0, 150);  // the lease ends: its clock is all that is waited for
  warden.go_on();
  CHECK_FALSE(warden.hears(ReportType::kFenced, milliseconds{300}));
}

TEST_CASE("warden: a lease that nobody renews is over, also after a standstill", "[proc]") {
  RawWarden warden;
  warden.start_sleep();
  warden.lease(seconds{60});
  warden.stop();
  warden.lease(milliseconds{-1});
  warden.go_on();
  CHECK(warden.hears(ReportType::kFenced));
  CHECK(warden.hears(ReportType::kExited));
}

}  // namespace ddprun::agent
