// SPDX-License-Identifier: Apache-2.0
// Output of real workers into files, in long lines, and of one worker in order. Lost output is
// counted.
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <future>
#include <map>
#include <optional>
#include <sstream>

#include "common/process_facts.h"
#include "tests/agent/group_fixture.h"
#include "tests/support/temp_directory.h"

namespace ddprun::agent {
namespace {

namespace fs = std::filesystem;

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// A group that writes its log files into a directory of the test.
struct LogFixture {
  explicit LogFixture(int num_workers, ConsoleOptions console = {-1, -1, -1})
      : run(num_workers > 1, std::move(console)) {
    run.options.logs.path = directory.path();
    run.options.output.log_dir = directory.path();
    for (int i = 0; i < num_workers; ++i) fs::create_directory(directory.path(std::to_string(i)));
  }
  void tee(const char* text) { REQUIRE(parse_stream_spec(text, run.options.output.tee).empty()); }
  void redirects(const char* text) {
    REQUIRE(parse_stream_spec(text, run.options.output.redirects).empty());
  }
  std::string log(const std::string& name) const { return read_file(directory.path(name)); }
  void run_to_end(const std::vector<std::string>& scripts) {
    run.start_shells(scripts);
    REQUIRE(run.wait_for([&] { return run.num_all_succeeded > 0 || !run.failures.empty(); }));
    REQUIRE(run.stop_and_wait());
    REQUIRE(run.console.finish_files(Deadline::after(kPatience)));
  }
  test::TempDirectory directory;
  GroupFixture run;
};

TEST_CASE("Output: tee'd lines are in the file as they were and behind a prefix on the console",
          "[proc]") {
  LogFixture f(2);
  f.tee("3");
  f.run_to_end({"echo out 0; echo err 0 >&2", "printf 'no end'"});
  CHECK(f.log("0/stdout.log") == "out 0\n");
  CHECK(f.log("0/stderr.log") == "err 0\n");
  CHECK(f.log("1/stdout.log") == "no end");
  CHECK(f.log("1/stderr.log").empty());
  const std::string out = f.run.out();
  CHECK(out.find("[default0]:out 0\n") != std::string::npos);
  CHECK(out.find("[default1]:no end\n") != std::string::npos);
  CHECK(f.run.err() == "[default0]:err 0\n");
}

TEST_CASE("Output: a worker's last lines can be seen while it runs and afterwards", "[proc]") {
  LogFixture f(2);
  std::optional<LastOutput> seen;
  const auto looks = [&](int rank) {
    seen.reset();
    REQUIRE(f.run.group->look(rank, [&](LastOutput last) { seen = std::move(last); }));
    REQUIRE(f.run.wait_for([&] { return seen.has_value(); }));
    return seen->lines;
  };
  const std::string script =
      "seq 1 100; echo oops >&2; read -r line < " + f.directory.path("go") + "; echo last";
  REQUIRE(::mkfifo(f.directory.path("go").c_str(), 0600) == 0);
  SECTION("read by ddprun") {
    f.run.start_shells({script, "exit 0"});
    REQUIRE(f.run.wait_for([&] {
      const auto lines = looks(0);
      return std::ranges::count(lines, "oops") == 1 && std::ranges::count(lines, "100") == 1;
    }));
    CHECK(looks(0).size() == OutputTail::kNumLines);
    CHECK(seen->note.empty());
    CHECK(looks(1).empty());
  }
  SECTION("its output goes to files of its own") {
    f.redirects("3");
    f.run.start_shells({script, "exit 0"});
    REQUIRE(f.run.wait_for([&] { return looks(0).size() == 33; }));
    CHECK(seen->lines[32] == "oops");
    CHECK(seen->lines[31] == "100");
    CHECK(seen->note == "the last lines of stdout, then those of stderr");
  }
  SECTION("stdout to a file, stderr dropped by a filter") {
    f.redirects("1");
    REQUIRE(parse_rank_set("1", f.run.options.output.local_ranks).empty());
    f.run.start_shells({script, "exit 0"});
    REQUIRE(f.run.wait_for([&] {  // stderr is read all the same, for reports
      const auto lines = looks(0);
      return std::ranges::count(lines, "oops") == 1 && std::ranges::count(lines, "100") == 1;
    }));
  }
  CHECK_FALSE(f.run.group->look(2, [](const LastOutput&) {}));
  std::ofstream(f.directory.path("go")) << "go\n";
  REQUIRE(f.run.wait_for([&] { return f.run.num_all_succeeded > 0; }));
  CHECK(std::ranges::count(looks(0), "last") == 1);
  REQUIRE(f.run.stop_and_wait());
  CHECK(std::ranges::count(looks(0), "last") == 1);
}

TEST_CASE("Output: a look says which stream is not kept", "[proc]") {
  GroupFixture run(false);
  run.start_shells({"echo out; echo err >&2"});
  REQUIRE(run.wait_for([&] { return run.num_all_succeeded > 0; }));
  std::optional<LastOutput> seen;
  REQUIRE(run.group->look(0, [&](LastOutput last) { seen = std::move(last); }));
  REQUIRE(seen);  // shown at once: no file is read
  CHECK(seen->lines == std::vector<std::string>{"err"});
  CHECK(seen->note == "stdout goes to ddprun's own, and is not kept");
  REQUIRE(run.stop_and_wait());
}

TEST_CASE("Output: redirected streams are in the files only, and a report has their last lines",
          "[proc]") {
  LogFixture f(2);
  f.redirects("3");
  f.run_to_end({"readlink /proc/self/fd/1; echo oops >&2; exit 3", "exit 0"});
  CHECK(f.log("0/stdout.log") == f.directory.path("0/stdout.log") + "\n");  // no pipe in between
  CHECK(f.log("0/stderr.log") == "oops\n");
  CHECK(f.run.out().empty());
  CHECK(f.run.err().empty());
  REQUIRE(f.run.failures.size() == 1);
  REQUIRE(f.run.failures[0].last_lines.size() == 2);
  CHECK(f.run.failures[0].last_lines[1] == "oops");
}

TEST_CASE("Output: lines that match are in a file of their own, with their prefix", "[proc]") {
  LogFixture f(2);
  f.tee("3");
  f.run.options.output.stdout_filters = {"apple"};
  f.run_to_end({"echo an apple; echo a pear", "echo a pear; printf 'apple, no end'"});
  std::string lines = f.log("filtered_stdout.log");
  CHECK(lines.size() == std::string("[default0]:an apple\n[default1]:apple, no end\n").size());
  CHECK(lines.find("[default0]:an apple\n") != std::string::npos);
  CHECK(lines.find("[default1]:apple, no end\n") != std::string::npos);
  CHECK_FALSE(fs::exists(f.directory.path("filtered_stderr.log")));
}

TEST_CASE("Output: ranks that aren't asked for are not shown, their last lines are known",
          "[proc]") {
  GroupFixture run;
  run.options.output.ranks.add(1, 1);
  run.start_shells({"echo no; echo why >&2; exit 3", "echo yes; sleep 100"});
  REQUIRE(run.wait_for([&] { return !run.failures.empty(); }));
  REQUIRE(run.wait_output("[1] yes\n"));
  REQUIRE(run.stop_and_wait());
  CHECK(run.out() == "[1] yes\n");
  CHECK(run.err().empty());
  CHECK(run.failures[0].last_lines == std::vector<std::string>{"why"});
}

TEST_CASE("Output: a bounded file is rotated while the worker writes", "[proc]") {
  LogFixture f(1);
  f.redirects("1");
  f.run.options.output.log_max_bytes = 10'000;
  f.run.options.output.log_keep = 2;
  f.run_to_end({"seq 1 10000"});
  const std::string last = f.log("0/stdout.log");
  CHECK(last.size() <= 10'000);
  CHECK(last.ends_with("10000\n"));
  for (const char* name : {"0/stdout.log.1", "0/stdout.log.2"}) {
    const std::string part = f.log(name);
    CHECK(part.size() <= 10'000);
    CHECK(part.size() > 9'000);
    CHECK(part.ends_with('\n'));
  }
  CHECK_FALSE(fs::exists(f.directory.path("0/stdout.log.3")));
}

TEST_CASE("Output: pipes in place of log files cost no worker anything, and the loss is counted",
          "[proc]") {
  std::vector<std::string> notices;
  ConsoleOptions console{-1, -1, -1};
  console.notice = [&](const std::string& text) { notices.push_back(text); };
  LogFixture f(2, console);
  f.tee("3");
  for (const char* name : {"0/stdout.log", "1/stdout.log"}) {
    REQUIRE(::mkfifo(f.directory.path(name).c_str(), 0600) == 0);
  }
  // One of them can be opened to be written, and then takes nothing after its first 64 KiB.
  const UniqueFd reader(
      ::open(f.directory.path("1/stdout.log").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  f.run_to_end({"seq 1 1000", "seq 1 30000"});
  CHECK(f.run.num_all_succeeded == 1);
  CHECK(f.run.out().find("[default0]:1000\n") != std::string::npos);
  REQUIRE(notices.size() == 1);
  CHECK(notices[0].find("(it is a pipe, and no regular file)") != std::string::npos);
  const auto losses = f.run.console.losses();
  REQUIRE(losses.size() == 1);
  CHECK(losses[0].starts_with("172787 bytes of the workers' output could not be written"));
}

// The thread that writes log files stands still in one of them until go_on().
class HungFile {
 public:
  explicit HungFile(LogFixture& f)
      : file_(f.run.console.log_writer().open_sink(path, [gate = gate_.get_future().share()] {
          gate.wait();
          return std::make_unique<LogFile>("/dev/null", LogFileOptions());
        })) {}
  void go_on() { gate_.set_value(); }

  const std::string path = "/a/dead/server";

 private:
  std::promise<void> gate_;
  std::unique_ptr<LogWriter::File> file_;
};

TEST_CASE("Output: a log file that hangs holds up its writer only, and loses nothing", "[proc]") {
  LogFixture f(3);
  f.tee("1");
  HungFile hung(f);
  f.run.start_shells({"seq 1 300000", "echo here", "sleep 0.05; exit 6"});
  REQUIRE(f.run.wait_for([&] { return !f.run.failures.empty(); }));
  CHECK(f.run.failures[0].exit_code == 6);
  REQUIRE(f.run.wait_output("[default1]:here\n"));
  // The queue and the pipe fill up, and the worker waits with the rest.
  f.run.wait_for_at_most(std::chrono::milliseconds(100), [] { return false; });
  CHECK(f.run.out().find("[default0]:300000\n") == std::string::npos);
  CHECK(f.run.num_all_succeeded == 0);
  hung.go_on();
  REQUIRE(f.run.wait_output("[default0]:300000\n"));
  REQUIRE(f.run.stop_and_wait());
  CHECK(f.run.console.finish_files(Deadline::after(kPatience)));
  std::string expected;
  for (int i = 1; i <= 300'000; ++i) expected += std::to_string(i) + "\n";
  CHECK((f.log("0/stdout.log") == expected));
  CHECK(f.log("1/stdout.log") == "here\n");
  CHECK(f.run.console.losses().empty());
}

TEST_CASE("Output: log files that hang at the end are waited for so long, and then said",
          "[proc]") {
  LogFixture f(1);
  f.tee("1");
  HungFile hung(f);
  f.run.start_shells({"echo three; echo short; echo lines"});
  REQUIRE(f.run.wait_for([&] { return f.run.num_all_succeeded > 0; }));
  REQUIRE(f.run.stop_and_wait());
  CHECK_FALSE(f.run.console.finish_files(Deadline::after(std::chrono::milliseconds(20))));
  const auto losses = f.run.console.losses();
  REQUIRE(losses.size() == 1);
  CHECK(losses[0].find("18 bytes") != std::string::npos);
  CHECK(losses[0].find(hung.path) != std::string::npos);
  hung.go_on();
  CHECK(f.run.console.finish_files(Deadline::after(kPatience)));
  CHECK(f.log("0/stdout.log") == "three\nshort\nlines\n");  // the lines come late, but they come
}

TEST_CASE("Output: a log file that hangs is said after five seconds, and how long it was",
          "[proc][slow]") {
  std::vector<std::string> notices;
  ConsoleOptions options{-1, -1, -1};
  options.notice = [&](const std::string& text) { notices.push_back(text); };
  LogFixture f(1, options);
  f.tee("1");
  HungFile hung(f);
  f.run.start_shells({"seq 1 300000"});
  REQUIRE(f.run.wait_for([&] { return !notices.empty(); }));
  CHECK(notices[0].find("nothing could be written to log files for 5 s (" + hung.path) == 0);
  hung.go_on();
  REQUIRE(f.run.wait_for([&] { return f.run.num_all_succeeded > 0; }));
  REQUIRE(f.run.stop_and_wait());
  CHECK(f.run.console.finish_files(Deadline::after(kPatience)));
  const auto losses = f.run.console.losses();
  REQUIRE(losses.size() == 1);
  CHECK(losses[0].find("workers waited ") == 0);
}

TEST_CASE("Output: long lines of several workers stay whole", "[proc]") {
  GroupFixture run;
  const auto script = [](char letter) {
    return std::string("for i in 1 2 3; do head -c 3000000 /dev/zero | tr '\\0' ") + letter +
           "; echo; done";
  };
  run.start_shells({script('a'), script('b'), script('c'), "seq 1 20000"});
  REQUIRE(run.wait_for([&] { return run.num_all_succeeded > 0; }));
  REQUIRE(run.stop_and_wait());
  std::istringstream lines(run.out());
  std::map<std::string, int> counts;
  bool whole = true;
  for (std::string line; std::getline(lines, line);) {
    const std::string prefix = line.substr(0, 4);
    const std::string text = line.substr(4);
    ++counts[prefix];
    if (prefix == "[3] ") {
      whole = whole && text == std::to_string(counts[prefix]);
    } else {
      const char letter = static_cast<char>('a' + (prefix[1] - '0'));
      whole = whole && text == std::string(3'000'000, letter);
    }
  }
  CHECK(whole);
  CHECK(counts ==
        std::map<std::string, int>{{"[0] ", 3}, {"[1] ", 3}, {"[2] ", 3}, {"[3] ", 20'000}});
}

TEST_CASE("Output: a worker's lines keep their order if stdout and stderr are one file", "[proc]") {
  UniqueFd both(::memfd_create("both", MFD_CLOEXEC));
  GroupFixture run(true, ConsoleOptions{-1, both.get(), both.get()});
  const std::string script = "i=0; while [ $i -lt 500 ]; do echo $i; echo $i >&2; i=$((i+1)); done";
  run.start_shells({script, script});
  REQUIRE(run.wait_for([&] { return run.num_all_succeeded > 0; }));
  REQUIRE(run.stop_and_wait());
  std::map<std::string, int> next;
  std::istringstream lines(contents(both.get()));
  bool in_order = true;
  for (std::string line; std::getline(lines, line);) {
    const std::string prefix = line.substr(0, 4);
    in_order = in_order && line.substr(4) == std::to_string(next[prefix]++ / 2);
  }
  CHECK(in_order);
  CHECK(next == std::map<std::string, int>{{"[0] ", 1000}, {"[1] ", 1000}});
}

TEST_CASE("Output: a pipe shows the progress bar of a worker that goes on", "[proc]") {
  GroupFixture run;
  run.start_shells({"printf '\\r10%%' >&2; sleep 100", "exit 0"});
  REQUIRE(run.wait_for([&] { return run.err() == "[0] \r10%"; }));
  REQUIRE(run.stop_and_wait());
}

TEST_CASE("Output: a reader that takes nothing holds up nobody with kDrop, and lines are counted",
          "[proc]") {
  int ends[2];
  REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
  UniqueFd read_end(ends[0]), write_end(ends[1]);
  std::vector<std::string> notices;
  ConsoleOptions options{-1, write_end.get(), -1};
  options.max_pending_bytes = 100'000;
  options.slow_reader = SlowReader::kDrop;
  options.notice = [&](const std::string& text) { notices.push_back(text); };
  GroupFixture run(true, options);
  run.start_shells({"seq 1 300000", "exit 0"});
  REQUIRE(run.wait_for([&] { return run.num_all_succeeded > 0; }));
  REQUIRE(run.stop_and_wait());
  REQUIRE(notices.size() == 1);
  CHECK(notices[0].find("--slow-reader=drop") != std::string::npos);
  const auto losses = run.console.losses();
  REQUIRE(losses.size() == 1);
  CHECK(std::stoul(losses[0]) > 100'000);
  // Lines that fit into the pipe and our buffer were not dropped.
  CHECK(std::stoul(losses[0]) < 300'000);
}

TEST_CASE("Output: a reader that is always behind needs no more memory", "[proc]") {
  int ends[2];
  REQUIRE(::pipe2(ends, O_CLOEXEC | O_NONBLOCK) == 0);
  const UniqueFd read_end(ends[0]), write_end(ends[1]);
  GroupFixture run(true, ConsoleOptions{-1, write_end.get(), -1});
  const std::string piece(64 * 1024, 'y');
  const auto say = [&] {
    run.console.lines(OutputStream::kStdout).raw(piece);
    run.console.flush(OutputStream::kStdout);
  };
  // From now on the reader is as fast as the writer, and never ahead of it.
  for (int i = 0; i < 6; ++i) say();
  const auto resident = [] { return resident_bytes(::getpid()).value(); };
  const std::size_t before = resident();
  std::vector<char> buffer(piece.size());
  std::size_t taken = 0;
  while (taken < 100'000'000) {
    const ssize_t size = ::read(read_end.get(), buffer.data(), buffer.size());
    REQUIRE(size > 0);
    taken += static_cast<std::size_t>(size);
    run.io.restart();
    run.io.poll();  // the console goes on with the pending lines
    if (taken % piece.size() == 0) say();
  }
  CHECK(resident() < before + 20'000'000);
}

TEST_CASE("Output: every worker has the console's own descriptors under the name torchrun",
          "[proc]") {
  GroupFixture run;
  run.options.output.inherit = true;
  const std::string show = "readlink /proc/self/fd/1; echo err >&2";
  run.start_shells({show, show});
  REQUIRE(run.wait_for([&] { return run.num_all_succeeded > 0; }));
  REQUIRE(run.stop_and_wait());
  CHECK(run.out() == "/memfd:stdout (deleted)\n/memfd:stdout (deleted)\n");
  CHECK(run.err() == "err\nerr\n");
}

}  // namespace
}  // namespace ddprun::agent
