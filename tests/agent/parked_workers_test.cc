// SPDX-License-Identifier: Apache-2.0
// A spare's workers with a real agent's socket, played by a few lines of Python.
#include "agent/round_workers.h"

#include <fstream>
#include <sstream>

#include "agent/output/log_tree.h"
#include "common/env_names.h"
#include "common/log_level.h"
#include "common/text.h"
#include "tests/agent/group_fixture.h"
#include "tests/support/temp_directory.h"

namespace ddprun::agent {
namespace {

using test::Contains;

// Says hello, waits for its place if it is told to, and prints the place's variables.
constexpr char kWorker[] = R"(
import os, socket, sys
s = socket.socket(socket.AF_UNIX)
s.connect(os.environ["DDPRUN_AGENT_SOCKET"])
s.sendall(b'{"type":"hello","version":1,"round":0,"local_rank":%s}\n' %
          os.environ["LOCAL_RANK"].encode())
f = s.makefile("rb")
f.readline()
print("warm", os.environ.get("RANK"), flush=True)
if sys.argv[1] == "waits":
    s.sendall(b'{"type":"wait_for_place"}\n')
line = f.readline()
print("place", f.read(int(line.split(b":")[-1].strip(b"} \n"))), flush=True)
)";

struct Spare : GroupFixture {
  explicit Spare(const std::vector<std::string>& arguments, WorkerGroupOptions group_options = {}) {
    ParkedWorkersOptions parked_options;
    parked_options.group = std::move(group_options);
    parked_options.group.several_workers = true;
    parked_options.environment.inherited = {{"PATH", "/usr/bin:/bin"}};
    parked_options.environment.num_workers = 2;
    parked_options.command.argv = arguments;
    parked_options.socket_parent = directory.path();
    ParkedWorkersEvents events;
    events.socket.said = [this](int, const WorkerLine&) { ++num_said; };
    events.socket.tell = [](LogLevel, const std::string&) {};
    events.failed = [this](const std::string& text) { why.push_back(text); };
    events.gone = [this] { ++num_gone; };
    parked = std::make_unique<ParkedWorkers>(io, console, pages, std::move(parked_options),
                                             std::move(events));
  }
  static std::vector<std::string> worker(const std::string& mode) {
    return {"/usr/bin/python3", "-c", kWorker, mode};
  }
  std::vector<std::vector<std::string>> places() const {
    return {{"PATH=/usr/bin:/bin", "RANK=6"}, {"PATH=/usr/bin:/bin", "RANK=7"}};
  }
  int num_shown(std::string_view text) const {
    const std::string shown = out();
    int count = 0;
    for (std::size_t at = 0; (at = shown.find(text, at)) != std::string::npos; ++at) ++count;
    return count;
  }
  bool dismissed() {
    parked->dismiss();
    return wait_for([this] { return num_gone == 1; });
  }

  test::TempDirectory directory;
  ProgressPages pages;
  std::unique_ptr<ParkedWorkers> parked;
  std::vector<std::string> why;
  int num_said = 0;
  int num_gone = 0;
};

}  // namespace

TEST_CASE("ParkedWorkers: all that wait get their places and become a group of the round",
          "[proc]") {
  Spare spare(Spare::worker("waits"));
  REQUIRE(spare.wait_for([&] { return spare.num_said == 2; }));
  CHECK(spare.why.empty());
  REQUIRE(spare.parked->place(spare.places()));
  const auto socket = spare.parked->take_socket();
  spare.group = spare.parked->take_group();
  spare.parked.reset();
  WorkerGroupEvents events;
  events.all_succeeded = [&] { ++spare.num_all_succeeded; };
  events.all_gone = [&] { ++spare.num_all_gone; };
  spare.group->adopt(3, 6, {}, std::move(events));
  REQUIRE(spare.wait_for([&] { return spare.num_all_succeeded == 1; }));
  REQUIRE(spare.stop_and_wait());
  CHECK_THAT(spare.out(), Contains("[spare] warm None\n"));
  CHECK_THAT(spare.out(), Contains("[6] place b'RANK=6\\x00'\n"));
  CHECK_THAT(spare.out(), Contains("[7] place b'RANK=7\\x00'\n"));
}

TEST_CASE("ParkedWorkers: log files begin with the place, in the round's own directory", "[proc]") {
  const bool is_tee = GENERATE(true, false);
  const test::TempDirectory logs;
  WorkerGroupOptions options;
  options.output.log_dir = logs.path();
  StreamSpec& spec = is_tee ? options.output.tee : options.output.redirects;
  REQUIRE(parse_stream_spec("1", spec).empty());
  Spare spare(Spare::worker("waits"), options);
  REQUIRE(spare.wait_for([&] { return spare.num_said == 2; }));
  REQUIRE(spare.wait_for([&] { return spare.num_shown("[spare] warm None\n") == 2; }));
  REQUIRE(spare.parked->place(spare.places()));
  const auto socket = spare.parked->take_socket();
  spare.group = spare.parked->take_group();
  spare.parked.reset();
  WorkerGroupEvents events;
  events.all_succeeded = [&] { ++spare.num_all_succeeded; };
  events.all_gone = [&] { ++spare.num_all_gone; };
  const LogFolder attempt = LogTree(logs.path(), "job").begin_attempt(4, 2);
  spare.group->adopt(3, 6, attempt, std::move(events));
  REQUIRE(spare.wait_for([&] { return spare.num_all_succeeded == 1; }));
  REQUIRE(spare.stop_and_wait());
  REQUIRE(spare.console.finish_files(Deadline::after(kPatience)));
  for (int i = 0; i < 2; ++i) {
    const std::string line = concat("place b'RANK=", 6 + i, "\\x00'\n");
    std::ifstream file(LogTree::log_file(attempt.path, i, OutputStream::kStdout));
    std::ostringstream text;
    text << file.rdbuf();
    CHECK(text.str() == line);
    CHECK(spare.num_shown(concat("[default", i, "]:", line)) == (is_tee ? 1 : 0));
  }
  CHECK(spare.num_shown("place") == (is_tee ? 2 : 0));
}

TEST_CASE("ParkedWorkers: no place for workers of which one doesn't wait", "[proc]") {
  Spare spare(Spare::worker("never"));
  REQUIRE(spare.wait_for([&] { return spare.out().find("warm") != std::string::npos; }));
  CHECK_FALSE(spare.parked->place(spare.places()));
  CHECK(spare.dismissed());
  CHECK_THAT(spare.out(), !Contains("place"));
}

TEST_CASE("ParkedWorkers: one that ends is told once, whatever its code", "[proc]") {
  const std::string code = GENERATE("0", "7");
  Spare spare({"/bin/sh", "-c", "exit " + code});
  REQUIRE(spare.wait_for([&] { return !spare.why.empty(); }));
  CHECK_FALSE(spare.parked->place(spare.places()));
  CHECK(spare.dismissed());
  CHECK(spare.why.size() == 1);
}

TEST_CASE("ParkedWorkers: a program that can't be started is told", "[proc]") {
  Spare spare({"/no/such/program"});
  REQUIRE(spare.wait_for([&] { return !spare.why.empty(); }));
  CHECK_THAT(spare.why.front(), Contains("/no/such/program"));
  CHECK(spare.dismissed());
}

}  // namespace ddprun::agent
