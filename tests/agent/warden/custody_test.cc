// SPDX-License-Identifier: Apache-2.0
// The agent as a process of its own, killed without warning: nothing of it may stay.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "agent/warden/process_tree.h"
#include "common/clock.h"
#include "tests/agent/group_fixture.h"

namespace ddprun::agent {
namespace {

// Runs agent_group_host with its output in a pipe.
class Host {
 public:
  Host(int num_workers, bool prefix, const std::string& script) {
    int ends[2];
    REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
    output_.reset(ends[0]);
    const UniqueFd write_end(ends[1]);
    const std::string count = std::to_string(num_workers);
    pid_ = ::fork();
    REQUIRE(pid_ >= 0);
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::dup2(write_end.get(), STDOUT_FILENO);
      ::execl(DDPRUN_GROUP_HOST, "agent_group_host", count.c_str(), prefix ? "1" : "0",
              script.c_str(), nullptr);
      ::_exit(127);
    }
  }
  ~Host() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
  }

  pid_t pid() const { return pid_; }

  // Reads on until the output has this many lines.
  const std::string& read_lines(std::size_t num_lines) {
    const auto deadline = Deadline::after(kPatience);
    while (num_lines_ < num_lines) {
      pollfd ready{output_.get(), POLLIN, 0};
      char buffer[4096];
      REQUIRE(::poll(&ready, 1, deadline.poll_timeout_ms()) == 1);
      const ssize_t size = ::read(output_.get(), buffer, sizeof buffer);
      REQUIRE(size > 0);
      text_.append(buffer, static_cast<std::size_t>(size));
      num_lines_ = static_cast<std::size_t>(std::count(text_.begin(), text_.end(), '\n'));
    }
    return text_;
  }

 private:
  pid_t pid_ = -1;
  UniqueFd output_;
  std::string text_;
  std::size_t num_lines_ = 0;
};

// A pidfd for each "pid N" in the text.
std::vector<UniqueFd> all_pidfds(const std::string& text) {
  std::vector<UniqueFd> result;
  for (auto at = text.find("pid "); at != std::string::npos; at = text.find("pid ", at + 1)) {
    result.push_back(open_pidfd(std::stoi(text.substr(at + 4))));
  }
  return result;
}

bool all_end(const std::vector<UniqueFd>& pidfds, Deadline deadline) {
  for (const UniqueFd& pidfd : pidfds) {
    pollfd ready{pidfd.get(), POLLIN, 0};
    if (::poll(&ready, 1, deadline.poll_timeout_ms()) != 1) return false;
  }
  return true;
}

// The children of `parent`, as the kernel lists them.
std::vector<pid_t> children_of(pid_t parent) {
  const std::string path =
      "/proc/" + std::to_string(parent) + "/task/" + std::to_string(parent) + "/children";
  std::vector<pid_t> result;
  if (FILE* file = std::fopen(path.c_str(), "r")) {
    for (pid_t pid; std::fscanf(file, "%d", &pid) == 1;) result.push_back(pid);
    std::fclose(file);
  }
  return result;
}

// A worker, its child, a grandchild in a session of its own, and a double-forked daemon. All ignore
// SIGTERM.
constexpr char kFamily[] =
    "trap '' TERM HUP; echo pid $$;"
    "sh -c 'echo pid $$; exec sleep 100' &"
    "(setsid sh -c 'echo pid $$; (setsid sh -c \"echo pid \\$\\$; exec sleep 100\" &);"
    " exec sleep 100' &);"
    "while :; do sleep 0.05; done";
constexpr std::size_t kFamilySize = 4;

TEST_CASE("Custody: kill -9 of the agent leaves no descendant, double-forked daemons included",
          "[proc]") {
  Host host(3, true, kFamily);
  auto pidfds = all_pidfds(host.read_lines(3 * kFamilySize));
  REQUIRE(pidfds.size() == 3 * kFamilySize);
  const auto wardens = children_of(host.pid());
  REQUIRE(wardens.size() == 1);
  pidfds.push_back(open_pidfd(wardens.front()));
  ::kill(host.pid(), SIGKILL);
  const auto begin = Clock::now();
  CHECK(all_end(pidfds, Deadline::after(kPatience)));
  CHECK(Clock::now() - begin < std::chrono::seconds(5));
}

TEST_CASE("Custody: kill -9 of the agent while it spawns leaves nobody", "[proc]") {
  Host host(64, true, "trap '' TERM HUP; echo pid $$; exec sleep 100");
  auto pidfds = all_pidfds(host.read_lines(GENERATE(1, 4, 16)));
  const auto wardens = children_of(host.pid());
  REQUIRE(wardens.size() == 1);
  const UniqueFd warden = open_pidfd(wardens.front());
  for (const pid_t worker : children_of(wardens.front())) pidfds.push_back(open_pidfd(worker));
  pidfds.push_back(open_pidfd(wardens.front()));
  ::kill(host.pid(), SIGKILL);
  // The warden ends only when it has no descendant left, as the kernel tells it.
  CHECK(all_end(pidfds, Deadline::after(kPatience)));
}

TEST_CASE("Custody: the agent and its warden killed together leave no worker", "[proc]") {
  Host host(2, true, "trap '' TERM HUP; echo pid $$; while :; do sleep 0.05; done");
  auto pidfds = all_pidfds(host.read_lines(2));
  const auto wardens = children_of(host.pid());
  REQUIRE(wardens.size() == 1);
  ::kill(host.pid(), SIGSTOP);  // a stopped agent can't do anything for them
  ::kill(wardens.front(), SIGKILL);
  CHECK(all_end(pidfds, Deadline::after(kPatience)));
}

// The directory in which a warden would make its own; empty: there is none.
std::string own_cgroup() {
  const auto text = [](const char* path) {
    std::ifstream file(path);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  char path[1024];
  const bool found = warden::own_cgroup_directory(
      text("/proc/self/cgroup").c_str(), text("/proc/self/mountinfo").c_str(), path, sizeof path);
  return found && ::access(path, W_OK) == 0 ? path : "";
}

// Names of the wardens' directories there; nullopt: none can be made here.
std::optional<std::vector<std::string>> warden_cgroups() {
  const std::string own = own_cgroup();
  if (own.empty()) return std::nullopt;
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(own)) {
    const std::string name = entry.path().filename();
    if (name.starts_with("ddprun-warden-")) names.push_back(name);
  }
  return names;
}

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

TEST_CASE("Custody: workers live in a cgroup of their own, which goes with them", "[proc]") {
  if (!warden_cgroups()) DDPRUN_SKIP("no cgroup v2 can be made here");
  Host host(2, true, kFamily);
  auto pidfds = all_pidfds(host.read_lines(2 * kFamilySize));
  const auto wardens = children_of(host.pid());
  REQUIRE(wardens.size() == 1);
  const std::string name = "ddprun-warden-" + std::to_string(wardens.front());
  CHECK(contains(*warden_cgroups(), name));
  std::ifstream file("/proc/" + std::to_string(children_of(wardens.front()).front()) + "/cgroup");
  const std::string cgroups(std::istreambuf_iterator<char>(file), {});
  CHECK_THAT(cgroups, test::Contains("/" + name + "\n"));
  pidfds.push_back(open_pidfd(wardens.front()));
  ::kill(host.pid(), SIGKILL);
  CHECK(all_end(pidfds, Deadline::after(kPatience)));
  CHECK_FALSE(contains(*warden_cgroups(), name));
}

TEST_CASE("Custody: the next warden ends the processes that a crash of agent and warden left",
          "[proc]") {
  if (!warden_cgroups()) DDPRUN_SKIP("no cgroup v2 can be made here");
  Host crashed(1, true, kFamily);
  const auto pidfds = all_pidfds(crashed.read_lines(kFamilySize));
  const auto wardens = children_of(crashed.pid());
  REQUIRE(wardens.size() == 1);
  const std::string name = "ddprun-warden-" + std::to_string(wardens.front());
  ::kill(crashed.pid(), SIGSTOP);  // a stopped agent can't do anything for them
  ::kill(wardens.front(), SIGKILL);
  ::kill(crashed.pid(), SIGKILL);
  // (The next warden may be any warden of this machine: other tests run beside this one.)
  Host next(1, true, "echo pid $$; while :; do sleep 0.05; done");
  const auto living = all_pidfds(next.read_lines(1));
  CHECK(all_end(pidfds, Deadline::after(kPatience)));
  // The warden that ended them removes the directory just after.
  const auto patience = Deadline::after(kPatience);
  while (contains(*warden_cgroups(), name) && !patience.expired()) ::usleep(1000);
  CHECK_FALSE(contains(*warden_cgroups(), name));
  CHECK_FALSE(all_end(living, Deadline::after(std::chrono::milliseconds(0))));
}

TEST_CASE(
    "Custody: a cgroup that isn't a warden's is let alone, one inside a warden's goes with it",
    "[proc]") {
  if (!warden_cgroups()) DDPRUN_SKIP("no cgroup v2 can be made here");
  const std::string own = own_cgroup();
  const std::string foreign = own + "/ddprun-warden-of-somebody";
  ::rmdir(foreign.c_str());  // the directory of an earlier run
  REQUIRE(::mkdir(foreign.c_str(), 0755) == 0);
  Host host(1, true, "echo pid $$; exec sleep 100");
  auto pidfds = all_pidfds(host.read_lines(1));
  const std::string name = "ddprun-warden-" + std::to_string(children_of(host.pid()).front());
  for (const char* inner : {"/ddprun-warden-1", "/ddprun-warden-2"}) {
    std::string path = own + "/" + name + inner;
    CHECK(::mkdir(path.c_str(), 0755) == 0);
    CHECK(::mkdir((path + "/empty").c_str(), 0755) == 0);
    for (int depth = 0; depth < 40; ++depth) CHECK(::mkdir((path += "/n").c_str(), 0755) == 0);
  }
  pidfds.push_back(open_pidfd(children_of(host.pid()).front()));
  ::kill(host.pid(), SIGKILL);
  CHECK(all_end(pidfds, Deadline::after(kPatience)));
  CHECK_FALSE(contains(*warden_cgroups(), name));
  CHECK(::rmdir(foreign.c_str()) == 0);
}

TEST_CASE("Custody: a living warden's cgroup is let alone by another", "[proc]") {
  if (!warden_cgroups()) DDPRUN_SKIP("no cgroup v2 can be made here");
  Host first(1, true, "echo pid $$; while :; do sleep 0.05; done");
  const auto living = all_pidfds(first.read_lines(1));
  Host second(1, true, "echo pid $$; while :; do sleep 0.05; done");
  second.read_lines(1);
  CHECK_FALSE(all_end(living, Deadline::after(std::chrono::milliseconds(100))));
}

// As a warden that begins at the same moment: it removes a cgroup that nobody has locked. Only
// those of this test's wardens: other tests run beside it.
class QuickWarden {
 public:
  explicit QuickWarden(std::string directory)
      : directory_(std::move(directory)), thread_([this] { run(); }) {}
  ~QuickWarden() {
    is_over_ = true;
    thread_.join();
  }
  int num_taken() const { return num_taken_; }

 private:
  void run() {
    while (!is_over_) {
      for (const pid_t host : children_of(::getpid())) {
        for (const pid_t warden : children_of(host)) {
          const std::string path = directory_ + "/ddprun-warden-" + std::to_string(warden);
          const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY));
          if (!fd || ::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) continue;
          if (::rmdir(path.c_str()) == 0) ++num_taken_;
        }
      }
    }
  }

  const std::string directory_;
  std::atomic<bool> is_over_{false};
  std::atomic<int> num_taken_{0};
  std::thread thread_;
};

// A machine that is idle lets the quick one win within a second, a busy one perhaps never.
TEST_CASE("Custody: a cgroup that another warden takes for a leftover is made again", "[proc]") {
  if (!warden_cgroups()) DDPRUN_SKIP("no cgroup v2 can be made here");
  QuickWarden quick(own_cgroup());
  const auto patience = Deadline::after(std::chrono::seconds(5));
  do {
    Host host(1, true, "grep ^0:: /proc/self/cgroup; exec sleep 100");
    CHECK_THAT(host.read_lines(1), test::Contains("/ddprun-warden-"));
  } while (quick.num_taken() == 0 && !patience.expired());
}

TEST_CASE("Custody: a warden is deaf to signals that end other processes", "[proc]") {
  Host host(1, true, "echo pid $$; read x; while :; do sleep 0.05; done");
  auto pidfds = all_pidfds(host.read_lines(1));
  const auto wardens = children_of(host.pid());
  REQUIRE(wardens.size() == 1);
  for (const int number : {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGPIPE}) {
    ::kill(wardens.front(), number);
  }
  pollfd ready{pidfds.front().get(), POLLIN, 0};
  CHECK(::poll(&ready, 1, 50) == 0);  // a worker would have died with its warden
}

}  // namespace
}  // namespace ddprun::agent
