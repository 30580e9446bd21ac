// SPDX-License-Identifier: Apache-2.0
#include "agent/error_files.h"

#include <unistd.h>

#include <fstream>

#include "tests/support/catch.h"
#include "tests/support/temp_directory.h"

using namespace ddprun::agent;

TEST_CASE("error file: the message that @record wrote, or nothing") {
  CHECK(parse_error_file(R"({"message": {"message": "ValueError: x", "extraInfo": {}}})") ==
        "ValueError: x");
  CHECK(parse_error_file(R"({"message": "plain"})") == "plain");
  for (const char* text : {"", "{", "[]", "7", "{}", R"({"message": 7})", R"({"message": {}})"}) {
    CAPTURE(text);
    CHECK(parse_error_file(text).empty());
  }
}

TEST_CASE("error files: read back per round and worker, nothing stays behind") {
  const ddprun::test::TempDirectory directory;
  const std::string prefix = directory.path("x");
  const auto exists = [](const std::string& path) { return ::access(path.c_str(), F_OK) == 0; };
  std::string first, second;
  {
    ErrorFiles files(prefix);
    files.begin_round(1, 2);
    first = files.path(1, 1);
    CHECK(first != files.path(1, 0));
    CHECK(first != files.path(2, 1));
    std::ofstream(first) << R"({"message": {"message": "KeyError: 'a'"}})";
    CHECK(files.message(1, 1) == "KeyError: 'a'");
    CHECK(files.message(1, 0).empty());
    files.begin_round(2, 2);
    CHECK_FALSE(exists(first));
    second = files.path(2, 0);
    std::ofstream(second) << "{";
    CHECK(files.message(2, 0).empty());
  }
  CHECK_FALSE(exists(second));
}

TEST_CASE("error files: no prefix, no files") {
  const ErrorFiles files("");
  CHECK(files.path(1, 0).empty());
  CHECK(files.message(1, 0).empty());
}
