// SPDX-License-Identifier: Apache-2.0
#include "common/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>

#include "common/environment.h"
#include "tests/support/catch.h"

using namespace ddprun;

namespace {

ChildCommand shell(const std::string& script) {
  return {.argv = {"sh", "-c", script}, .environment = to_strings(current_environment())};
}

int status_of(const Child& child) {
  int status = 0;
  REQUIRE(::waitpid(child.pid, &status, 0) == child.pid);
  return status;
}

std::string read_all(UniqueFd fd) {
  std::string text;
  std::array<char, 4096> buffer;
  for (ssize_t size; (size = ::read(fd.get(), buffer.data(), buffer.size())) > 0;) {
    text.append(buffer.data(), static_cast<std::size_t>(size));
  }
  return text;
}

// The child's standard output.
std::string output_of(ChildCommand command) {
  Pipe pipe = make_pipe();
  command.descriptors = {ChildCommand::kNothing, pipe.write_end.get()};
  const Child child = start_child(command);
  pipe.write_end.reset();
  std::string text = read_all(std::move(pipe.read_end));
  CHECK(status_of(child) == 0);
  return text;
}

int start_error_of(const ChildCommand& command) {
  try {
    start_child(command);
  } catch (const StartError& error) {
    return error.error_number();
  }
  return 0;
}

// A line of /proc/self/status, as the child's own program reads it.
std::string status_line(ChildCommand command, const std::string& name) {
  command.argv = {"sed", "-n", "s/^" + name + ":\\t//p", "/proc/self/status"};
  return output_of(std::move(command));
}

}  // namespace

TEST_CASE("child_process: its pidfd is readable once it has ended", "[proc]") {
  const Child child = start_child({.argv = {"sleep", "1000"}});
  pollfd end{child.pidfd.get(), POLLIN, 0};
  CHECK(::poll(&end, 1, 0) == 0);
  ::kill(child.pid, SIGKILL);
  CHECK(::poll(&end, 1, 10'000) == 1);
  CHECK(WTERMSIG(status_of(child)) == SIGKILL);
}

TEST_CASE("child_process: no child is left if there is no descriptor for it", "[proc]") {
  const pid_t pid = ::fork();
  if (pid == 0) {
    for (;;) ::pause();
  }
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  const rlimit none{0, before.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
  std::string problem;
  try {
    open_child_pidfd(pid, "the-program");
  } catch (const Error& error) {
    problem = error.what();
  }
  ::setrlimit(RLIMIT_NOFILE, &before);
  CHECK(problem.find("pidfd_open for the-program") == 0);
  CHECK(::waitpid(pid, nullptr, 0) == -1);
  CHECK(errno == ECHILD);
}

TEST_CASE("child_process: a program or directory that isn't there is an error with its errno",
          "[proc]") {
  CHECK(start_error_of({.argv = {"ddprun-no-such-program"}}) == ENOENT);
  CHECK(start_error_of({.argv = {"/dev/null"}}) == EACCES);
  CHECK(start_error_of({.argv = {"true"}, .directory = "/dev/null"}) == ENOTDIR);
  CHECK(start_error_of({.argv = {"/no/such"}, .descriptors = {1'000'000}}) == EBADF);
  CHECK(::waitpid(-1, nullptr, 0) == -1);  // none is left
}

TEST_CASE("child_process: descriptors that are each other's numbers are not lost", "[proc]") {
  Pipe first = make_pipe(), second = make_pipe();
  ChildCommand command = shell("echo one >&\"$0\"; echo two >&\"$1\"");
  const int low = std::min(first.write_end.get(), second.write_end.get());
  const int high = std::max(first.write_end.get(), second.write_end.get());
  command.descriptors.assign(static_cast<std::size_t>(high) + 1, ChildCommand::kSame);
  command.descriptors[static_cast<std::size_t>(low)] = high;
  command.descriptors[static_cast<std::size_t>(high)] = low;
  command.argv.push_back(std::to_string(first.write_end.get()));
  command.argv.push_back(std::to_string(second.write_end.get()));
  CHECK(status_of(start_child(command)) == 0);
  first.write_end.reset();
  second.write_end.reset();
  CHECK(read_all(std::move(first.read_end)) == "two\n");
  CHECK(read_all(std::move(second.read_end)) == "one\n");
}

TEST_CASE("child_process: it has only its own descriptors, and the one that is kept", "[proc]") {
  const Pipe pipe = make_pipe();
  ChildCommand command = shell("for fd in $0 $1; do [ -e /proc/$$/fd/$fd ] && echo $fd; done; :");
  command.argv.push_back(std::to_string(pipe.read_end.get()));
  command.argv.push_back(std::to_string(pipe.write_end.get()));
  command.kept_descriptor = pipe.write_end.get();
  CHECK(output_of(command) == std::to_string(pipe.write_end.get()) + "\n");
}

TEST_CASE("child_process: signals are as at a login, or as here", "[proc]") {
  sigset_t usr2, before;
  sigemptyset(&usr2);
  sigaddset(&usr2, SIGUSR2);
  REQUIRE(::pthread_sigmask(SIG_BLOCK, &usr2, &before) == 0);
  const auto old = std::signal(SIGUSR1, SIG_IGN);
  CHECK(status_line({}, "SigIgn") == "0000000000000000\n");
  CHECK(status_line({}, "SigBlk") == "0000000000000000\n");
  CHECK(status_line({.keeps_ignored = true}, "SigIgn") != "0000000000000000\n");
  CHECK(status_line({.blocked = usr2}, "SigBlk") == "0000000000000800\n");
  sigset_t now;
  REQUIRE(::pthread_sigmask(SIG_SETMASK, &before, &now) == 0);
  CHECK(sigismember(&now, SIGUSR2) == 1);
  std::signal(SIGUSR1, old);
}

TEST_CASE("child_process: a session, a directory, an oom_score_adj of its own", "[proc]") {
  ChildCommand command =
      shell("pwd; cat /proc/self/oom_score_adj; cut -d' ' -f6 /proc/$$/stat; echo $$");
  command.directory = "/proc";
  command.own_session = true;
  command.plain_oom_score = true;
  const std::string text = output_of(command);
  REQUIRE(text.substr(0, 8) == "/proc\n0\n");
  const std::string session = text.substr(8, text.size() / 2 - 4);
  CHECK(text == "/proc\n0\n" + session + session);
}

TEST_CASE("child_process: it dies with the process that started it", "[proc]") {
  Pipe pipe = make_pipe();
  const pid_t parent = ::fork();
  if (parent == 0) {
    start_child({.argv = {"sleep", "1000"},
                 .descriptors = {ChildCommand::kNothing, pipe.write_end.get()},
                 .dies_with_us = true});
    ::_exit(0);
  }
  REQUIRE(::waitpid(parent, nullptr, 0) == parent);
  pipe.write_end.reset();
  pollfd end{pipe.read_end.get(), POLLIN, 0};
  CHECK(::poll(&end, 1, 10'000) == 1);  // the pipe's other end is closed everywhere
}

TEST_CASE("child_process: one that nobody waits for says what it failed at", "[proc]") {
  const auto report_of = [](const ChildCommand& command) {
    Pipe report = make_pipe();
    const Child child = start_child_apart(command, report.write_end.get());
    report.write_end.reset();
    StartFailure failure;
    const ssize_t size = ::read(report.read_end.get(), &failure, sizeof failure);
    status_of(child);
    return size == sizeof failure ? std::optional(failure) : std::nullopt;
  };
  CHECK_FALSE(report_of({.argv = {"true"}}));
  const auto no_directory = report_of({.argv = {"true"}, .directory = "/no/such"});
  REQUIRE(no_directory);
  CHECK(no_directory->error_number == ENOENT);
  CHECK(no_directory->is_of_directory);
  const auto no_program = report_of({.argv = {"/dev/null"}});
  REQUIRE(no_program);
  CHECK(no_program->error_number == EACCES);
  CHECK_FALSE(no_program->is_of_directory);
}
