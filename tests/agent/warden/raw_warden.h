// SPDX-License-Identifier: Apache-2.0
// ddprun-warden itself, spoken to by its protocol.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <string_view>

#include "agent/warden/protocol.h"
#include "agent/warden_process.h"
#include "common/clock.h"
#include "tests/agent/group_fixture.h"

namespace ddprun::agent {

class RawWarden {
 public:
  // `report_bytes`: room for reports that are not read (SO_SNDBUF); 0: as the system gives it.
  explicit RawWarden(int report_bytes = 0) {
    int ends[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
    socket_.reset(ends[0]);
    const UniqueFd theirs(::fcntl(ends[1], F_DUPFD_CLOEXEC, 10));
    ::close(ends[1]);
    if (report_bytes > 0) {
      REQUIRE(::setsockopt(theirs.get(), SOL_SOCKET, SO_SNDBUF, &report_bytes,
                           sizeof report_bytes) == 0);
    }
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, theirs.get(), warden::kSocketFd);
    std::string name = "ddprun-warden";
    char* argv[] = {name.data(), nullptr};
    char* envp[] = {nullptr};
    const std::string path = WardenProcess::default_path();
    REQUIRE(::posix_spawn(&pid_, path.c_str(), &actions, nullptr, argv, envp) == 0);
    posix_spawn_file_actions_destroy(&actions);
    REQUIRE(hears(warden::ReportType::kReady));
  }
  // Its workers die with it.
  ~RawWarden() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  RawWarden(const RawWarden&) = delete;
  RawWarden& operator=(const RawWarden&) = delete;

  // Sends `payload` in the protocol's form, without environment. Without arguments the warden
  // refuses it.
  void spawn(std::string_view payload, int output_fd = -1) {
    const UniqueFd file(::memfd_create("payload", MFD_CLOEXEC));
    REQUIRE(::write(file.get(), payload.data(), payload.size()) ==
            static_cast<ssize_t>(payload.size()));
    const UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
    const int output = output_fd < 0 ? null.get() : output_fd;
    const int fds[warden::kNumSpawnFds] = {file.get(), null.get(), output, null.get()};
    warden::Request request;
    request.num_arguments =
        static_cast<std::uint32_t>(std::count(payload.begin(), payload.end(), '\0') - 1);
    request.payload_bytes = payload.size();
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
  }
  void start_sleep() {
    constexpr std::string_view kPayload(
        "\0/bin/sleep\0"
        "1000",
        17);
    spawn(kPayload);
    REQUIRE(hears(warden::ReportType::kStarted));
  }

  void warn(int signal_number) {
    warden::Request request;
    request.type = warden::RequestType::kWarn;
    request.signal_number = signal_number;
    tell(request);
  }

  void lease(Clock::duration from_now) {
    using std::chrono::duration_cast;
    warden::Request request;
    request.type = warden::RequestType::kLease;
    const auto until = (Clock::now() + from_now).time_since_epoch();
    request.lease_until_ms = duration_cast<std::chrono::milliseconds>(until).count();
    tell(request);
  }

  // The warden stands still when this returns.
  void stop() {
    ::kill(pid_, SIGSTOP);
    int status = 0;
    REQUIRE(::waitpid(pid_, &status, WUNTRACED) == pid_);
    REQUIRE(WIFSTOPPED(status));
  }
  void go_on() { ::kill(pid_, SIGCONT); }

  // Whether the next report is of this type and comes in time.
  bool hears(warden::ReportType type, std::chrono::milliseconds limit = kPatience) {
    pollfd ready{socket_.get(), POLLIN, 0};
    if (::poll(&ready, 1, static_cast<int>(limit.count())) != 1) return false;
    return ::recv(socket_.get(), &last_, sizeof last_, 0) == sizeof last_ && last_.type == type;
  }
  const warden::Report& last() const { return last_; }

 private:
  void tell(const warden::Request& request) {
    REQUIRE(::send(socket_.get(), &request, sizeof request, MSG_NOSIGNAL) == sizeof request);
  }

  UniqueFd socket_;
  pid_t pid_ = -1;
  warden::Report last_;
};

}  // namespace ddprun::agent
