// SPDX-License-Identifier: Apache-2.0
#include "agent/output/log_tree.h"

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>

#include "common/error.h"
#include "tests/support/catch.h"
#include "tests/support/temp_directory.h"

namespace ddprun::agent {
namespace {

namespace fs = std::filesystem;

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST_CASE("log tree: torchrun's names, missing parents are made") {
  const test::TempDirectory directory;
  LogTree tree(directory.path("a/b"), "job/1");
  CHECK_FALSE(fs::exists(directory.path("a")));
  const std::string attempt = tree.begin_attempt(0, 2).path;
  CHECK(std::regex_match(attempt.substr(directory.path().size()),
                         std::regex("/a/b/job_1_[a-z0-9_]{8}/attempt_0")));
  CHECK(fs::is_empty(attempt + "/0"));
  CHECK(fs::is_empty(attempt + "/1"));
  CHECK(LogTree::log_file(attempt, 1, OutputStream::kStderr) == attempt + "/1/stderr.log");
  CHECK(LogTree::error_file(attempt, 0) == attempt + "/0/error.json");
  CHECK(LogTree::filtered_file(attempt, OutputStream::kStdout) == attempt + "/filtered_stdout.log");
  CHECK(tree.begin_attempt(1, 1).path == tree.run_directory() + "/attempt_1");
  CHECK((fs::status(tree.run_directory()).permissions() & fs::perms::all) == fs::perms::owner_all);
}

TEST_CASE("log tree: an attempt that was there is emptied, two runs have two directories") {
  const test::TempDirectory directory;
  LogTree tree(directory.path(), "j"), other(directory.path(), "j");
  const std::string attempt = tree.begin_attempt(0, 1).path;
  std::ofstream(attempt + "/0/stdout.log") << "old";
  CHECK(tree.begin_attempt(0, 1).path == attempt);
  CHECK(fs::is_empty(attempt + "/0"));
  CHECK(other.begin_attempt(0, 1).path != attempt);
}

TEST_CASE(
    "log tree: files stay in the run's own directory where others have put theirs in its place") {
  const test::TempDirectory directory;
  const std::string precious = directory.path("precious"), aside = directory.path("aside");
  std::ofstream(precious) << "precious";
  LogTree tree(directory.path("logs"), "j");
  const LogFolder attempt = tree.begin_attempt(0, 1);
  const std::string name = LogTree::log_file(attempt.path, 0, OutputStream::kStdout);
  fs::rename(tree.run_directory(), aside);
  fs::create_directories(attempt.path + "/0");
  for (const char* end : {"", ".1"}) fs::create_symlink(precious, name + end);

  LogFile file(name, {.folder = attempt, .max_bytes = 4});
  file.write("one\ntwo\n");
  CHECK(text_of(precious) == "precious");
  CHECK(text_of(aside + "/attempt_0/0/stdout.log") == "two\n");
  CHECK(text_of(aside + "/attempt_0/0/stdout.log.1") == "one\n");
}

TEST_CASE("log tree: a link in the run's own directory is not written through") {
  const test::TempDirectory directory;
  const std::string precious = directory.path("precious");
  std::ofstream(precious) << "precious";
  const LogFolder attempt = LogTree(directory.path("logs"), "j").begin_attempt(0, 1);
  const std::string name = LogTree::log_file(attempt.path, 0, OutputStream::kStdout);
  fs::create_symlink(precious, name);
  const RegularFile file = open_log_file(name, attempt);
  CHECK_FALSE(file.fd);
  CHECK(file.problem == errno_text(ELOOP));
  CHECK(text_of(precious) == "precious");
}

TEST_CASE("log tree: another directory is the run's where its own was moved away") {
  const test::TempDirectory directory;
  const std::string aside = directory.path("aside");
  LogTree tree(directory.path("logs"), "j");
  tree.begin_attempt(0, 1);
  const std::string run = tree.run_directory();
  fs::rename(run, aside);
  fs::create_directories(aside + "/attempt_1");
  std::ofstream(aside + "/attempt_1/kept") << "x";
  fs::create_directory_symlink(aside, run);
  const LogFolder attempt = tree.begin_attempt(1, 1);
  CHECK(attempt.path == tree.run_directory() + "/attempt_1");
  CHECK(tree.run_directory() != run);
  CHECK(fs::is_directory(attempt.path + "/0"));
  CHECK(fs::exists(aside + "/attempt_1/kept"));
}

TEST_CASE("log tree: says beforehand what can't be, and leaves nothing but the directory") {
  const test::TempDirectory directory;
  CHECK(LogTree::problem_with(directory.path("a/b")).empty());
  CHECK(fs::is_empty(directory.path("a/b")));
  std::ofstream(directory.path("file")) << "x";
  CHECK(LogTree::problem_with(directory.path("file")) == "is no directory");
  CHECK(LogTree::problem_with(directory.path("file/x")) == "can't be made: Not a directory");
  CHECK(LogTree::problem_with("/proc/nothing").starts_with("can't be made: "));
  CHECK(LogTree::problem_with("/proc").starts_with("can't be written to: "));
}

TEST_CASE("log tree: foresees the same without making anything") {
  const test::TempDirectory directory;
  CHECK(LogTree::foreseen_problem_with(directory.path("a/b")).empty());
  CHECK(fs::is_empty(directory.path()));
  CHECK(LogTree::foreseen_problem_with(directory.path()).empty());
  std::ofstream(directory.path("file")) << "x";
  for (const std::string& path : {directory.path("file"), directory.path("file/x"),
                                  std::string("/proc/nothing"), std::string("/proc")}) {
    CHECK(LogTree::foreseen_problem_with(path) == LogTree::problem_with(path));
  }
}

TEST_CASE("log tree: the pattern of a file that each rank has") {
  CHECK(LogTree::of_all_ranks("/l/j_1/attempt_0/7/flight_recorder.json") ==
        "/l/j_1/attempt_0/*/flight_recorder.json");
  CHECK(LogTree::of_all_ranks("/d2/rank_17.json") == "/d2/rank_*.json");
}

TEST_CASE("log tree: a run's directory has the name that was foreseen") {
  const test::TempDirectory directory;
  LogTree tree(directory.path(), "job/1");
  const std::string attempt = tree.begin_attempt(2, 1).path;
  const std::string random = tree.run_directory().substr(tree.run_directory().size() - 8);
  const std::string run = LogTree::run_directory(directory.path(), "job/1", random);
  CHECK(tree.run_directory() == run);
  CHECK(attempt == LogTree::attempt_directory(run, 2));
}

}  // namespace
}  // namespace ddprun::agent
