// SPDX-License-Identifier: Apache-2.0
#include "agent/standing/gang_output.h"

#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <vector>

#include "common/byte_text.h"
#include "tests/support/catch.h"
#include "tests/support/temp_directory.h"

namespace ddprun::launcher {
namespace {

using namespace std::chrono_literals;
using test::Contains;

struct Reader {
  boost::asio::io_context io;
  const test::TempDirectory place;
  std::vector<gangs::OutputAnswer> answers;
  GangOutput output{io, place.path("logs"), "n1",
                    [this](const gangs::OutputAnswer& answer) { answers.push_back(answer); }};

  bool ask(bool runs, std::int64_t wait_ms) {
    gangs::OutputRequest request;
    request.request = 1;
    request.gang = "a";
    request.most = 1'000;
    request.wait_ms = wait_ms;
    return output.read(request, runs);
  }
};

TEST_CASE("GangOutput: a reader of a job whose directory was removed waits, and hears why",
          "[proc]") {
  Reader reader;
  reader.output.open("a");
  std::filesystem::remove_all(reader.place.path("logs/gangs/a"));
  reader.ask(true, 50);
  CHECK(reader.answers.empty());  // an answer at once would make the reader ask again and again
  reader.io.run_for(5s);
  REQUIRE(reader.answers.size() == 1);
  CHECK_THAT(reader.answers.at(0).reason, Contains("can't read ") && Contains("No such file"));
  CHECK_THAT(reader.output.trouble("a"), Contains("can't read ") && Contains("No such file"));
  reader.ask(true, 0);  // a reader that isn't ready to wait gets its answer at once
  CHECK(reader.answers.size() == 2);
}

TEST_CASE("GangOutput: one whose directory is removed meanwhile is answered all the same",
          "[proc]") {
  Reader reader;
  reader.output.open("a");
  reader.ask(true, 50);
  std::filesystem::remove_all(reader.place.path("logs/gangs/a"));
  reader.io.run_for(5s);
  CHECK(reader.answers.size() == 1);
}

TEST_CASE("GangOutput: a pipe in place of a file is said, and nobody waits for it", "[proc]") {
  Reader reader;
  reader.output.open("a");
  const std::string path = reader.place.path("logs/gangs/a/n1/stdout");
  std::filesystem::remove(path);
  REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
  CHECK_THROWS_WITH(reader.output.open("a"),
                    "can't write to " + path + ": it is a pipe, and no regular file");
  reader.ask(false, 0);
  CHECK_THAT(reader.answers.at(0).reason, Contains("it is a pipe, and no regular file"));
}

TEST_CASE("GangOutput: printed text is there, and no trouble", "[proc]") {
  Reader reader;
  const auto files = reader.output.open("a");
  CHECK(::write(files.out.get(), "said\n", 5) == 5);
  CHECK_FALSE(reader.ask(false, 0));
  CHECK(from_base64(reader.answers.at(0).out) == "said\n");
  CHECK(reader.output.trouble("a").empty());
}

}  // namespace
}  // namespace ddprun::launcher
