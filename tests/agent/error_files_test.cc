// SPDX-License-Identifier: Apache-2.0
#include "agent/error_files.h"

#include <unistd.h>

#include <fstream>

#include "tests/support/catch.h"

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
  std::string path;
  {
    const ErrorFiles files("/tmp");
    path = files.path(2, 1);
    CHECK(path != files.path(2, 0));
    CHECK(path != files.path(1, 1));
    std::ofstream(path) << R"({"message": {"message": "KeyError: 'a'"}})";
    CHECK(files.message(2, 1) == "KeyError: 'a'");
    CHECK(files.message(1, 1).empty());
  }
  CHECK(::access(path.substr(0, path.rfind('/')).c_str(), F_OK) != 0);
}

TEST_CASE("error files: no directory, no files") {
  const ErrorFiles files("/nonexistent");
  CHECK(files.path(1, 0).empty());
  CHECK(files.message(1, 0).empty());
}
