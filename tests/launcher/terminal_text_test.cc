// SPDX-License-Identifier: Apache-2.0
#include "launcher/terminal_text.h"

#include <fcntl.h>
#include <unistd.h>

#include <future>

#include "common/log_level.h"
#include "common/unique_fd.h"
#include "tests/support/catch.h"

namespace ddprun::launcher {
namespace {

using namespace std::chrono_literals;

struct Pipe {
  Pipe() {
    int ends[2];
    REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
    reader.reset(ends[0]);
    writer.reset(ends[1]);
  }
  UniqueFd reader, writer;
};

TEST_CASE("log_level: torchrun's LOGLEVEL, its default changes nothing") {
  const auto level = [](const char* name) { return log_level({{"LOGLEVEL", name}}); };
  CHECK(log_level({}) == LogLevel::kInfo);
  CHECK(level("WARNING") == LogLevel::kInfo);
  CHECK(level("nonsense") == LogLevel::kInfo);
  CHECK(level("INFO") == LogLevel::kDebug);
  CHECK(level("ERROR") == LogLevel::kError);
  CHECK(level("CRITICAL") == LogLevel::kError);
}

TEST_CASE("terminal_text: a reader that doesn't read is not waited for without end") {
  Pipe pipe;
  const std::string more_than_fits(200'000, 'x');
  auto written = std::async(std::launch::async,
                            [&] { write_within(pipe.writer.get(), more_than_fits, 20ms); });
  const bool returned = written.wait_for(5s) == std::future_status::ready;
  if (!returned) pipe.reader.reset();  // EPIPE then ends it
  CHECK(returned);
}

TEST_CASE("terminal_text: a slow reader gets all") {
  Pipe pipe;
  const std::string text(200'000, 'x');
  auto written = std::async(std::launch::async, [&] { write_within(pipe.writer.get(), text, 5s); });
  std::size_t num_read = 0;
  char buffer[1000];
  while (num_read < text.size()) {
    const ssize_t size = ::read(pipe.reader.get(), buffer, sizeof buffer);
    REQUIRE(size > 0);
    num_read += static_cast<std::size_t>(size);
  }
  CHECK(written.wait_for(5s) == std::future_status::ready);
}

}  // namespace
}  // namespace ddprun::launcher
