// SPDX-License-Identifier: Apache-2.0
#include "agent/failure_details.h"

#include <unistd.h>

#include <fstream>

#include "tests/support/catch.h"
#include "tests/support/temp_directory.h"

using namespace ddprun::agent;

TEST_CASE("error file: the message that @record wrote, or nothing") {
  CHECK(parse_error_file(R"({"message": {"message": "ValueError: x", "extraInfo": {}}})").message ==
        "ValueError: x");
  CHECK(parse_error_file(R"({"message": "plain"})").message == "plain");
  for (const char* text : {"", "{", "[]", "7", "{}", R"({"message": 7})", R"({"message": {}})"}) {
    CAPTURE(text);
    CHECK(parse_error_file(text).message.empty());
  }
}

TEST_CASE("error file: the traceback, of a long one the first line and the end") {
  const auto traceback = [](const std::string& stack) {
    return parse_error_file(R"({"message": {"message": "E", "extraInfo": {"py_callstack": ")" +
                            stack + R"("}}})")
        .traceback;
  };
  CHECK(traceback("Traceback:\\n  here\\nE: x\\n") ==
        std::vector<std::string>{"Traceback:", "  here", "E: x"});
  CHECK(traceback("").empty());
  std::string stack = "Traceback:";
  for (int i = 0; i < 100; ++i) stack += "\\nline " + std::to_string(i);
  const auto lines = traceback(stack);
  REQUIRE(lines.size() == 24);
  CHECK(lines.front() == "Traceback:");
  CHECK(lines[1] == "line 77");
  CHECK(lines.back() == "line 99");
}

TEST_CASE("error file: fields that a program's own handler added are kept, up to a size") {
  const auto fields = [](const std::string& json) { return parse_error_file(json).fields; };
  CHECK(fields(R"({"message": {"message": "E", "errorCode": 3,
                   "extraInfo": {"py_callstack": "T", "timestamp": "1"}}})") == "");
  CHECK(fields(R"({"message": "E"})") == "");
  CHECK(fields(R"({"message": {"message": "E", "extraInfo": {"timestamp": "1", "step": 40}},
                   "ticket": 7})") == R"({"message":{"extraInfo":{"step":40}},"ticket":7})");
  CHECK(fields(R"({"message": "E", "job": [1]})") == R"({"job":[1]})");
  CHECK(fields(R"({"message": "E", "big": ")" + std::string(9000, 'x') + R"("})") == "");
}

TEST_CASE("error files: read back by round and worker") {
  const ddprun::test::TempDirectory directory;
  FailureDetails files(2);
  CHECK(files.error_file(1, 0).empty());
  CHECK(files.read_error(1, 0).message.empty());
  const std::vector<std::string> paths = {worker_error_file("", directory.path(), 0),
                                          worker_error_file("", directory.path(), 1)};
  CHECK(paths[0] != paths[1]);
  files.begin_round(1, "", directory.path(), nullptr);
  CHECK(files.error_file(1, 1) == paths[1]);
  std::ofstream(paths[1]) << R"({"message": {"message": "KeyError: 'a'"}})";
  CHECK(files.read_error(1, 1).message == "KeyError: 'a'");
  CHECK(files.read_error(1, 0).message.empty());
  CHECK(files.read_error(1, 2).message.empty());
  CHECK(files.read_error(2, 1).message.empty());
  std::ofstream(paths[0]) << "{";
  CHECK(files.read_error(1, 0).message.empty());
  files.begin_round(2, "/logs/attempt_0", directory.path(), nullptr);
  CHECK(files.error_file(2, 1) == "/logs/attempt_0/1/error.json");
  files.begin_round(3, "", "", nullptr);
  CHECK(files.error_file(3, 0).empty());
}

TEST_CASE("error files: a link shows nothing of the file that it leads to") {
  const ddprun::test::TempDirectory directory;
  FailureDetails files(1);
  files.begin_round(1, "", directory.path(), nullptr);
  const std::string other = directory.path() + "/other.json";
  std::ofstream(other) << R"({"password": "12345"})";
  REQUIRE(::symlink(other.c_str(), files.error_file(1, 0).c_str()) == 0);
  CHECK(files.read_error(1, 0).fields.empty());
}
