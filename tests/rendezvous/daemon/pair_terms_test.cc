// SPDX-License-Identifier: Apache-2.0
// A whole pair in one process, its terms step by step.
#include <algorithm>
#include <boost/asio/post.hpp>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "common/socket.h"
#include "rendezvous/daemon/pair.h"
#include "tests/rendezvous/daemon/test_agent.h"
#include "tests/support/catch.h"
#include "tests/support/log_lines.h"
#include "tests/support/temp_directory.h"

namespace ddprun::rendezvous::testing {
namespace {

using namespace std::chrono_literals;

// Of a thread of this process: whether it sleeps, and how often it did.
struct Sleeps {
  bool now = false;
  long number = 0;
};

// The first thread of that name; nullopt: there is none.
std::optional<Sleeps> thread_named(const std::string& name) {
  std::error_code error;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task", error)) {
    std::ifstream status(task.path() / "status");
    Sleeps its;
    std::string line;
    bool is_it = false;
    while (std::getline(status, line)) {
      is_it = is_it || line == "Name:\t" + name;
      if (line.starts_with("State:\tS")) its.now = true;
      constexpr std::string_view kNumber = "voluntary_ctxt_switches:";
      if (line.starts_with(kNumber)) its.number = std::stol(line.substr(kNumber.size()));
    }
    if (is_it) return its;
  }
  return std::nullopt;
}

template <typename Done>
bool poll_until(Done done) {
  const Deadline deadline = Deadline::after(10s);
  while (!done()) {
    if (deadline.expired()) return false;
    std::this_thread::yield();
  }
  return true;
}

struct PairInOneProcess {
  PairInOneProcess() {
    set_log_level(LogLevel::kInfo);
    for (auto* listeners : {&a_listeners, &b_listeners}) {
      *listeners = bind_endpoint({.host = "127.0.0.1", .port = 0});
      ports.push_back(local_address(listeners->front().get()).port());
    }
    a = make("a", 1, std::move(a_listeners));
    b = make("b", 0, std::move(b_listeners));
  }
  ~PairInOneProcess() { set_log_level(LogLevel::kError); }

  std::unique_ptr<Pair> make(const std::string& name, int peer, std::vector<UniqueFd> listeners) {
    DaemonOptions options;
    PairOptions pair;
    pair.directory = directory.path(name);
    pair.peer = {.host = "127.0.0.1", .port = ports[peer]};
    pair.is_first = name == "a";
    pair.name = name + ":29400";
    return std::make_unique<Pair>(io, std::move(listeners), std::move(options), std::move(pair));
  }
  long num_said(const std::string& text) const {
    const auto all = lines.all();
    return std::ranges::count_if(
        all, [&](const std::string& line) { return line.find(text) != line.npos; });
  }
  // One handler at a time: right after the one that said it.
  bool until_said(const std::string& text) {
    return run_until(io, [&] { return num_said(text) > 0; });
  }

  const test::LogLines lines;
  test::TempDirectory directory;
  boost::asio::io_context io{1};
  std::vector<UniqueFd> a_listeners, b_listeners;
  std::vector<std::uint16_t> ports;
  std::unique_ptr<Pair> a, b;
};

}  // namespace

TEST_CASE_METHOD(PairInOneProcess,
                 "Pair: that a term is over, heard in the next one, does not end that one") {
  REQUIRE(until_said("leads: b:29400 mirrors it"));
  const auto has_slept = [](long number) {
    const auto writer = thread_named("journal");
    return writer && writer->now && writer->number > number;
  };
  REQUIRE(poll_until([&] { return has_slept(0); }));
  const long before = thread_named("journal")->number;
  b.reset();
  REQUIRE(until_said("the standby b:29400 is lost"));
  // The journal's thread has said that the term is over. Nobody has heard it yet.
  REQUIRE(poll_until([&] { return has_slept(before); }));
  REQUIRE(until_said("begins a new term"));
  // The next term is in the journal, and that is said, too.
  REQUIRE(poll_until([] { return !thread_named("ddprund-term"); }));
  REQUIRE(until_said("leads, term 2"));
  bool is_heard = false;
  boost::asio::post(io, [&] { is_heard = true; });
  REQUIRE(run_until(io, [&] { return is_heard; }));
  CHECK(a->daemon().leads());
  CHECK(num_said("begins a new term") == 1);
}

}  // namespace ddprun::rendezvous::testing
