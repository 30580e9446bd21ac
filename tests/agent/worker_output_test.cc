// SPDX-License-Identifier: Apache-2.0
// Output of real workers: whole lines, nothing lost, a reader that is slow or gone, a terminal.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <termios.h>

#include <algorithm>
#include <map>
#include <thread>

#include "common/clock.h"
#include "tests/agent/group_fixture.h"

namespace ddprun::agent {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

struct PipePair {
  PipePair() {
    int ends[2];
    REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
    read_end.reset(ends[0]);
    write_end.reset(ends[1]);
  }
  UniqueFd read_end, write_end;
};

// The bytes that can be read now.
std::string read_available(int fd) {
  std::string text;
  char buffer[65536];
  pollfd ready{fd, POLLIN, 0};
  while (::poll(&ready, 1, 0) == 1 && (ready.revents & POLLIN)) {
    const ssize_t size = ::read(fd, buffer, sizeof buffer);
    if (size <= 0) break;
    text.append(buffer, static_cast<std::size_t>(size));
  }
  return text;
}

std::vector<std::string> split_lines(const std::string& text) {
  std::vector<std::string> lines;
  std::size_t at = 0;
  for (std::size_t end; (end = text.find('\n', at)) != std::string::npos; at = end + 1) {
    lines.push_back(text.substr(at, end - at));
  }
  return lines;
}

TEST_CASE("Output: 8 noisy workers mix by whole lines only, and nothing is lost", "[proc]") {
  GroupFixture run;
  constexpr int kNumLines = 20'000;
  // seq writes blocks of 4 KiB, which end anywhere in a line.
  const std::string script =
      "seq -f 'worker-" + std::string(50, 'x') + "-%.0f' 1 " + std::to_string(kNumLines);
  run.start_shells(std::vector<std::string>(8, script));
  REQUIRE(run.wait_for([&] { return run.num_all_succeeded > 0; }));
  REQUIRE(run.stop_and_wait());
  std::map<std::string, int> next;
  bool in_order = true;
  for (const std::string& line : split_lines(run.out())) {
    const std::string prefix = line.substr(0, line.find(' ') + 1);
    const std::string expected =
        prefix + "worker-" + std::string(50, 'x') + "-" + std::to_string(++next[prefix]);
    in_order = in_order && line == expected;
  }
  CHECK(in_order);
  REQUIRE(next.size() == 8);
  for (const auto& [prefix, count] : next) CHECK(count == kNumLines);
}

TEST_CASE("Output: stdout goes to stdout and stderr to stderr", "[proc]") {
  GroupFixture run;
  run.start_shells({"echo out; echo err >&2", "exit 0"});
  REQUIRE(run.wait_for([&] { return run.num_all_succeeded > 0; }));
  REQUIRE(run.stop_and_wait());
  CHECK(run.out() == "[0] out\n");
  CHECK(run.err() == "[0] err\n");
}

TEST_CASE("Output: a 10 MB line without newline passes whole", "[proc]") {
  GroupFixture run;
  run.start_shells({"head -c 10000000 /dev/zero | tr '\\0' x", "exit 0"});
  REQUIRE(run.wait_for([&] { return run.num_all_succeeded > 0; }));
  REQUIRE(run.stop_and_wait());
  CHECK(run.out() == "[0] " + std::string(10'000'000, 'x') + "\n");
}

TEST_CASE("Output: a single worker's stderr passes unchanged, and its last lines are known",
          "[proc]") {
  GroupFixture run(false);
  run.start_shells({"echo to stdout; printf '\\001\\377bytes\\r' >&2; echo oops >&2; exit 4"});
  REQUIRE(run.wait_for([&] { return !run.failures.empty(); }));
  REQUIRE(run.stop_and_wait());
  CHECK(run.out() == "to stdout\n");
  CHECK(run.err() == "\001\377bytes\roops\n");
  REQUIRE(run.failures[0].last_lines.size() == 1);
  CHECK(run.failures[0].last_lines[0] == "oops");
}

TEST_CASE("Output: a single worker whose streams are one file keeps their order", "[proc]") {
  UniqueFd both(::memfd_create("both", MFD_CLOEXEC));
  GroupFixture run(false, ConsoleOptions{-1, both.get(), both.get()});
  run.start_shells({"for i in 1 2 3 4 5; do echo out $i; echo err $i >&2; done; exit 1"});
  REQUIRE(run.wait_for([&] { return !run.failures.empty(); }));
  REQUIRE(run.stop_and_wait());
  CHECK(contents(both.get()) ==
        "out 1\nerr 1\nout 2\nerr 2\nout 3\nerr 3\nout 4\nerr 4\nout 5\nerr 5\n");
  CHECK(run.failures[0].last_lines.size() == 10);
}

TEST_CASE("Output: a daemon that keeps the pipe open delays no report", "[proc]") {
  GroupFixture run;
  run.start_shells({"(setsid sleep 100 &); echo partial; printf end; exit 9"});
  REQUIRE(run.wait_for([&] { return !run.failures.empty(); }));
  CHECK(run.failures[0].last_lines == std::vector<std::string>{"partial", "end"});
  CHECK(run.out() == "[0] partial\n[0] end\n");
  REQUIRE(run.stop_and_wait());
}

TEST_CASE("Output: a console that isn't read holds up workers, not exits, and loses nothing",
          "[proc]") {
  PipePair pipe;
  ConsoleOptions options{-1, pipe.write_end.get(), -1};
  options.max_pending_bytes = 100'000;
  GroupFixture run(true, options);
  run.start_shells({"seq 1 300000", "exit 0", "sleep 0.05; exit 6"});
  REQUIRE(run.wait_for([&] { return !run.failures.empty(); }));
  CHECK(run.failures[0].exit_code == 6);
  CHECK(run.num_all_succeeded == 0);
  std::string text;
  const std::string last = "[0] 300000\n";
  REQUIRE(run.wait_for([&] {
    text += read_available(pipe.read_end.get());
    return text.size() >= last.size() &&
           text.compare(text.size() - last.size(), last.size(), last) == 0;
  }));
  CHECK(split_lines(text).size() == 300'000);
  REQUIRE(run.stop_and_wait());
}

TEST_CASE("Output: stop() ends although the console isn't read, finish() has a deadline",
          "[proc]") {
  PipePair pipe;
  ConsoleOptions options{-1, pipe.write_end.get(), -1};
  options.max_pending_bytes = 100'000;
  GroupFixture run(true, options);
  run.start_shells({"while :; do echo line; done", "exec sleep 100"});
  REQUIRE(run.wait_for([&] { return run.console.is_full(OutputStream::kStdout); }));
  REQUIRE(run.stop_and_wait());
  CHECK(run.console.finish(Deadline::after(milliseconds(20))) > 0);
}

TEST_CASE("Output: finish() hands a slow reader all that is pending", "[proc]") {
  PipePair pipe;
  GroupFixture run(true, ConsoleOptions{-1, pipe.write_end.get(), -1});
  run.start_shells({"seq 1 100000"});
  REQUIRE(run.wait_for([&] { return run.num_all_succeeded > 0; }));
  REQUIRE(run.stop_and_wait());
  std::string text;
  std::thread reader([&] {
    while (text.find("[0] 100000\n") == std::string::npos) {
      text += read_available(pipe.read_end.get());
    }
  });
  CHECK(run.console.finish(Deadline::after(kPatience)) == 0);
  reader.join();
  CHECK(split_lines(text).size() == 100'000);
}

TEST_CASE("Output: a reader that goes away stops neither agent nor workers", "[proc]") {
  PipePair pipe;
  GroupFixture run(true, ConsoleOptions{-1, pipe.write_end.get(), -1});
  pipe.read_end.reset();
  run.start_shells({"seq 1 100000; echo alive >&2; exit 0", "exit 0"});
  REQUIRE(run.wait_for([&] { return run.num_all_succeeded > 0; }));
  CHECK(run.err() == "[0] alive\n");
  REQUIRE(run.stop_and_wait());
  CHECK(run.console.finish(Deadline::after(seconds(1))) ==
        0);  // nothing is left that could be written
}

TEST_CASE("Output: the flags of our stdout stay as they are", "[proc]") {
  PipePair pipe;
  const int before = ::fcntl(pipe.write_end.get(), F_GETFL);
  GroupFixture run(true, ConsoleOptions{-1, pipe.write_end.get(), -1});
  run.start_shells({"echo x"});
  REQUIRE(run.wait_for([&] { return run.num_all_succeeded > 0; }));
  CHECK(::fcntl(pipe.write_end.get(), F_GETFL) == before);
  CHECK(read_available(pipe.read_end.get()) == "[0] x\n");
  REQUIRE(run.stop_and_wait());
}

// A pseudo-terminal. The test reads the side of the screen.
struct Terminal {
  Terminal() : master(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC)) {
    REQUIRE(::grantpt(master.get()) == 0);
    REQUIRE(::unlockpt(master.get()) == 0);
    char name[128];
    REQUIRE(::ptsname_r(master.get(), name, sizeof name) == 0);
    slave.reset(::open(name, O_RDWR | O_NOCTTY | O_CLOEXEC));
    REQUIRE(slave.valid());
    termios settings;
    ::tcgetattr(slave.get(), &settings);
    settings.c_oflag &= ~static_cast<tcflag_t>(OPOST);  // newlines stay as they were written
    ::setenv("NO_COLOR", "1", 1);
    ::tcsetattr(slave.get(), TCSANOW, &settings);
  }
  UniqueFd master, slave;
};

TEST_CASE("Output: rank 0's progress bar is redrawn on a terminal", "[proc]") {
  Terminal terminal;
  GroupFixture run(true, ConsoleOptions{-1, terminal.slave.get(), terminal.slave.get()});
  run.start_shells({"printf '\\r10%%' >&2; read x; exit 0", "exit 0"});
  std::string screen;
  REQUIRE(run.wait_for([&] {
    screen += read_available(terminal.master.get());
    return screen.find("[0] 10%") != std::string::npos;
  }));
  REQUIRE(run.stop_and_wait());
}

TEST_CASE("Output: each worker's prefix has a colour on a terminal", "[proc]") {
  Terminal terminal;
  ::unsetenv("NO_COLOR");
  ::setenv("TERM", "xterm", 1);
  GroupFixture run(true, ConsoleOptions{-1, terminal.slave.get(), terminal.slave.get()});
  run.start_shells({"exit 0", "echo hello"});
  std::string screen;
  REQUIRE(run.wait_for([&] {
    screen += read_available(terminal.master.get());
    return screen == "\x1b[33m[1] \x1b[0mhello\n";
  }));
  REQUIRE(run.stop_and_wait());
}

TEST_CASE("Output: a single worker on a terminal has that terminal, and can read it", "[proc]") {
  Terminal terminal;
  const int fd = terminal.slave.get();
  GroupFixture run(false, ConsoleOptions{fd, fd, fd});
  run.start_shells({"test -t 0 && test -t 1 && test -t 2 && echo terminal; read x; echo got $x"});
  std::string screen;
  REQUIRE(run.wait_for([&] {
    screen += read_available(terminal.master.get());
    return screen.find("terminal\n") != std::string::npos;
  }));
  REQUIRE(::write(terminal.master.get(), "typed\n", 6) == 6);
  REQUIRE(run.wait_for([&] { return run.num_all_succeeded > 0; }));
  screen += read_available(terminal.master.get());
  CHECK(screen.find("got typed") != std::string::npos);
  REQUIRE(run.stop_and_wait());
}

TEST_CASE("Output: a terminal that is held (Ctrl-S) blocks nothing", "[proc]") {
  Terminal terminal;
  ConsoleOptions options{-1, terminal.slave.get(), -1};
  options.max_pending_bytes = 10'000;
  GroupFixture run(true, options);
  ::tcflow(terminal.slave.get(), TCOOFF);
  run.start_shells({"seq 1 100000", "sleep 0.02; exit 3"});
  REQUIRE(run.wait_for([&] { return !run.failures.empty(); }));
  CHECK(run.failures[0].exit_code == 3);
  ::tcflow(terminal.slave.get(), TCOON);
  std::string screen;
  REQUIRE(run.wait_for([&] {
    screen += read_available(terminal.master.get());
    return screen.find("[0] 99999\n") != std::string::npos;
  }));
  REQUIRE(run.stop_and_wait());
}

}  // namespace
}  // namespace ddprun::agent
