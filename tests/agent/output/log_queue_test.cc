// SPDX-License-Identifier: Apache-2.0
#include "agent/output/log_queue.h"

#include <fstream>
#include <future>
#include <sstream>
#include <thread>

#include "tests/support/catch.h"
#include "tests/support/temp_directory.h"

namespace ddprun::agent {
namespace {

// A queue that keeps its posted tasks, and writes when the test says so.
struct Fixture {
  test::TempDirectory directory;
  std::vector<LogQueue::Task> posted;
  std::shared_ptr<LogQueue> queue = std::make_shared<LogQueue>(
      [this](LogQueue::Task task) { posted.push_back(std::move(task)); });

  LogQueue::FilePtr open(const std::string& name, std::uint64_t max_bytes = 0) {
    LogFileOptions options;
    options.max_bytes = max_bytes;
    return queue->open(directory.path(name), options);
  }
  std::string read(const std::string& name) const {
    std::ifstream file(directory.path(name));
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
  }
};

const std::string kHalf(LogQueue::kMaxQueuedBytes / 2, 'x');

TEST_CASE("log queue: queued text is written in its order, file by file") {
  Fixture f;
  const auto a = f.open("a"), b = f.open("b");
  f.queue->append(a, "one\n");
  f.queue->append(b, "two\n");
  f.queue->append(a, "three\n");
  f.queue->close(a);
  CHECK(f.queue->num_queued_bytes() == 14);
  CHECK_FALSE(f.queue->wait_idle(Deadline::after(std::chrono::seconds(0))));
  f.queue->write_all();
  CHECK(f.queue->wait_idle(Deadline::after(std::chrono::seconds(0))));
  CHECK(f.queue->num_queued_bytes() == 0);
  CHECK(f.read("a") == "one\nthree\n");
  CHECK(f.read("b") == "two\n");
}

TEST_CASE("log queue: errands are run in their order, before files, and so many may wait") {
  Fixture f;
  std::string order;
  const auto a = f.open("a");
  f.queue->append(a, "one\n");
  for (std::size_t i = 0; i < LogQueue::kMaxErrands; ++i) {
    CHECK(f.queue->run_errand([&order, i] { order += static_cast<char>('a' + i); }));
  }
  CHECK_FALSE(f.queue->run_errand([&order] { order += "one too many"; }));
  std::thread writer([&] { f.queue->run(); });
  CHECK(f.queue->wait_idle(Deadline::after(std::chrono::seconds(10))));
  CHECK(order == "abcdefghijklmnop");
  f.queue->end();
  writer.join();
  CHECK(f.read("a") == "one\n");
}

TEST_CASE("log queue: an errand that doesn't return by the end is known, and no other one begins") {
  Fixture f;
  std::promise<void> began, go_on;
  REQUIRE(f.queue->run_errand([&] {
    began.set_value();
    go_on.get_future().wait();
  }));
  bool is_late = false;
  REQUIRE(f.queue->run_errand([&] { is_late = true; }));
  std::thread writer([&] { f.queue->run(); });
  began.get_future().wait();
  CHECK_FALSE(f.queue->end());
  CHECK_FALSE(f.queue->run_errand([&] { is_late = true; }));
  go_on.set_value();
  writer.join();
  CHECK_FALSE(is_late);
  CHECK(f.queue->end());
}

TEST_CASE("log queue: a file that nothing is written to is there, empty") {
  Fixture f;
  f.queue->close(f.open("a"));
  f.queue->write_all();
  CHECK(std::ifstream(f.directory.path("a")).is_open());
}

TEST_CASE("log queue: one that is closed and made anew has only what came last") {
  Fixture f;
  const auto before = f.open("a");
  f.queue->append(before, "before\n");
  f.queue->close(before);
  const auto after = f.open("a");
  f.queue->append(after, "after\n");
  f.queue->write_all();
  CHECK(f.read("a") == "after\n");
}

TEST_CASE("log queue: room is told once, when at most half of the bound is queued") {
  Fixture f;
  const auto file = f.open("a"), other = f.open("b");
  f.queue->append(file, kHalf + "x");
  CHECK_FALSE(f.queue->is_full(*file));
  f.queue->append(file, kHalf);
  CHECK(f.queue->is_full(*file));
  CHECK_FALSE(f.queue->is_full(*other));
  f.queue->when_room(file, [] {});
  CHECK(f.posted.empty());
  f.queue->write_all();
  CHECK(f.posted.size() == 1);
  CHECK_FALSE(f.queue->is_full(*file));
  f.queue->append(file, "more");
  f.queue->write_all();
  CHECK(f.posted.size() == 1);
  f.queue->when_room(file, [] {});  // there is room already
  CHECK(f.posted.size() == 2);
}

TEST_CASE("log queue: lost bytes are counted, and told once") {
  Fixture f;
  int num_told = 0;
  f.queue->set_first_lost([&] { ++num_told; });
  const auto file = f.open("missing/a");
  f.queue->append(file, "12345");
  f.queue->write_all();
  f.queue->append(file, "678");
  f.queue->write_all();
  CHECK(f.queue->losses().num_bytes == 8);
  CHECK(f.queue->losses().first_path == f.directory.path("missing/a"));
  CHECK(f.queue->losses().first_reason == errno_text(ENOENT));
  REQUIRE(f.posted.size() == 1);
  f.posted[0]();
  CHECK(num_told == 1);
}

TEST_CASE("log queue: a call is waited for until its deadline, one that hangs refuses the next") {
  Fixture f;
  std::promise<void> answer;
  std::thread writer([&] { f.queue->run(); });
  bool called = false;
  CHECK(f.queue->call([&] { called = true; }, Deadline::after(std::chrono::seconds(30))));
  CHECK(called);
  CHECK_FALSE(f.queue->call([&] { answer.get_future().wait(); },
                            Deadline::after(std::chrono::milliseconds(5))));
  CHECK_FALSE(f.queue->call([] { FAIL("called"); }, Deadline::after(std::chrono::seconds(30))));
  CHECK_FALSE(f.queue->wait_idle(Deadline::after(std::chrono::seconds(0))));
  answer.set_value();
  CHECK(f.queue->wait_idle(Deadline::after(std::chrono::seconds(30))));
  CHECK(f.queue->call([] {}, Deadline::after(std::chrono::seconds(30))));
  f.queue->end();
  writer.join();
}

TEST_CASE("log queue: the writer ends after end(), with everything written and nothing posted") {
  Fixture f;
  const auto file = f.open("a");
  f.queue->append(file, kHalf + kHalf);
  f.queue->when_room(file, [] {});
  f.queue->end();
  std::thread writer([&] { f.queue->run(); });
  writer.join();
  CHECK(f.read("a") == kHalf + kHalf);
  CHECK(f.posted.empty());
}

}  // namespace
}  // namespace ddprun::agent
