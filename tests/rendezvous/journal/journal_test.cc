// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/journal/journal.h"

#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <stdexcept>
#include <thread>

#include "common/log.h"
#include "rendezvous/journal/journal_file.h"
#include "rendezvous/journal/row.h"
#include "tests/rendezvous/journal/posts.h"
#include "tests/support/catch.h"
#include "tests/support/forked_child.h"
#include "tests/support/temp_directory.h"

namespace ddprun::journal {
namespace {

using test::Posts;
using test::TempDirectory;

// Like a full disk: no file of this process can grow any more.
class FullDisk {
 public:
  FullDisk() {
    ::signal(SIGXFSZ, SIG_IGN);
    REQUIRE(::getrlimit(RLIMIT_FSIZE, &before_) == 0);
    rlimit none = before_;
    none.rlim_cur = 1;
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &none) == 0);
  }
  ~FullDisk() { ::setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  rlimit before_{};
};

std::vector<std::string> logged;

class LoggedLines {
 public:
  LoggedLines() {
    logged.clear();
    set_log_sink([](LogLevel, std::string_view line) { logged.emplace_back(line); });
  }
  ~LoggedLines() {
    set_log_sink([](LogLevel, std::string_view) {});
  }
};

TEST_CASE("Journal: calls come back in order, after what they stand for is kept") {
  TempDirectory directory;
  Posts posts;
  std::vector<int> order;
  {
    Journal journal(std::make_unique<JournalFile>(directory.path(), Durability::kProcess),
                    posts.post());
    for (int i = 0; i < 100; ++i) {
      journal.commit({{"n", std::to_string(i)}}, [&order, i] { order.push_back(i); });
    }
    posts.run_until([&] { return order.size() == 100; });
  }
  for (int i = 0; i < 100; ++i) CHECK(order[static_cast<std::size_t>(i)] == i);
  CHECK(JournalFile(directory.path(), Durability::kProcess).load().rows == Rows{{"n", "99"}});
}

TEST_CASE("Journal: calls that wait for one write take turns with what others post") {
  TempDirectory directory;
  Posts posts;
  Journal journal(std::make_unique<JournalFile>(directory.path(), Durability::kProcess),
                  posts.post());
  constexpr int kNumCalls = 50;
  int num_calls = 0, num_before_others = 0;
  bool is_kept = false;
  journal.commit({{"first", "1"}}, [&] { is_kept = true; });
  posts.run_until([&] { return is_kept; });
  FullDisk full;  // from the first failure on each commit's call is due at once
  bool has_failed = false;
  journal.commit({{"a", std::string(9000, 'x')}}, [&] { has_failed = true; });
  posts.run_until([&] { return has_failed; });
  for (int i = 0; i < kNumCalls; ++i) {
    journal.commit({{"a", std::to_string(i)}}, [&] {
      if (++num_calls == 1) posts.post()([&] { num_before_others = num_calls; });
      const auto until = Clock::now() + std::chrono::milliseconds(1);
      while (Clock::now() < until) {
      }
    });
  }
  posts.run_until([&] { return num_calls == kNumCalls; });
  CHECK(num_before_others > 0);
  CHECK(num_before_others < kNumCalls / 2);
}

TEST_CASE("Journal: its end writes what waits and calls nobody") {
  TempDirectory directory;
  int num_calls = 0;
  {
    Journal journal(std::make_unique<JournalFile>(directory.path(), Durability::kProcess),
                    [](const std::function<void()>&) {});
    for (int i = 0; i < 50; ++i) journal.commit({{"a", std::to_string(i)}}, [&] { ++num_calls; });
  }
  CHECK(num_calls == 0);
  CHECK(JournalFile(directory.path(), Durability::kProcess).load().rows == Rows{{"a", "49"}});
}

TEST_CASE("Journal: jobs go on while the disk is full, which is said once and made up for later") {
  TempDirectory directory;
  Posts posts;
  const LoggedLines log;
  {
    Journal journal(std::make_unique<JournalFile>(directory.path(), Durability::kProcess),
                    posts.post());
    int num_done = 0;
    const auto commit = [&](const char* key, std::optional<std::string> content) {
      const int expected = num_done + 1;
      journal.commit({{key, std::move(content)}}, [&] { ++num_done; });
      posts.run_until([&] { return num_done == expected; });
    };
    commit("before", "1");
    commit("erased", "1");
    {
      FullDisk full;
      for (int i = 0; i < 20; ++i) commit("during", std::string(9000, static_cast<char>('a' + i)));
      commit("erased", std::nullopt);
    }
    // It is logged by itself, because nobody commits now.
    posts.run_until([&] { return logged.size() == 2; });
  }
  CHECK_THAT(logged.at(0), Catch::Contains("jobs go on in memory"));
  CHECK_THAT(logged.at(1), Catch::Contains("is written again, and up to date"));
  CHECK(JournalFile(directory.path(), Durability::kProcess).load().rows ==
        Rows{{"before", "1"}, {"during", std::string(9000, 't')}});
}

// A disk that works, fails or hangs as the test says.
class TestDisk : public BatchWriter {
 public:
  struct State {
    std::mutex mutex;
    std::condition_variable wakes;
    bool hangs = false, fails = false;
    int num_tries = 0;
    Rows rows;
  };
  explicit TestDisk(std::shared_ptr<State> state) : state_(std::move(state)) {}
  void commit(const Batch& batch) override {
    std::unique_lock lock(state_->mutex);
    ++state_->num_tries;
    state_->wakes.notify_all();
    state_->wakes.wait(lock, [&] { return !state_->hangs; });
    if (state_->fails) throw std::runtime_error("the disk is full");
    apply_batch(batch, state_->rows);
  }
  std::string name() const override { return "disk"; }

 private:
  const std::shared_ptr<State> state_;
};

void set(TestDisk::State& disk, bool TestDisk::State::*what, bool value) {
  const std::lock_guard lock(disk.mutex);
  disk.*what = value;
  disk.wakes.notify_all();
}

TEST_CASE("Journal: a disk that hangs stops no decision, and is made up for when it answers") {
  const auto disk = std::make_shared<TestDisk::State>();
  Posts posts;
  const LoggedLines log;
  JournalOptions options;
  options.commit_limit = std::chrono::milliseconds(500);
  options.first_retry = std::chrono::milliseconds(20);
  {
    Journal journal(std::make_unique<TestDisk>(disk), posts.post(), options);
    std::vector<int> order;
    set(*disk, &TestDisk::State::hangs, true);
    for (int i = 0; i < 5; ++i) {
      journal.commit({{"n", std::to_string(i)}}, [&order, i] { order.push_back(i); });
    }
    posts.run_until([&] { return order.size() == 5; });
    REQUIRE(journal.trouble());
    CHECK_THAT(journal.trouble()->what, Catch::Contains("has not answered for 500 ms"));
    // Commits are called back at once from now on.
    journal.commit({{"n", "5"}}, [&order] { order.push_back(5); });
    posts.run_until([&] { return order.size() == 6; });
    for (int i = 0; i < 6; ++i) CHECK(order[static_cast<std::size_t>(i)] == i);
    set(*disk, &TestDisk::State::hangs, false);
    posts.run_until([&] { return logged.size() == 2; });
    CHECK_FALSE(journal.trouble());
    journal.commit({{"last", "1"}}, [&order] { order.push_back(6); });
    posts.run_until([&] { return order.size() == 7; });
    CHECK(disk->rows == Rows{{"last", "1"}, {"n", "5"}});
  }
  CHECK_THAT(logged.at(0), Catch::Contains("can't write disk: the disk has not answered"));
  CHECK_THAT(logged.at(1), Catch::Contains("disk is written again, and up to date"));
}

TEST_CASE("Journal: a process that stood still does not blame its disk") {
  const test::ChildEnd end = test::run_forked([] {
    const auto disk = std::make_shared<TestDisk::State>();
    Posts posts;
    const LoggedLines log;
    JournalOptions options;
    options.commit_limit = std::chrono::milliseconds(200);
    options.second_look = std::chrono::seconds(30);
    set(*disk, &TestDisk::State::hangs, true);
    Journal journal(std::make_unique<TestDisk>(disk), posts.post(), options);
    bool done = false;
    journal.commit({{"n", "1"}}, [&done] { done = true; });
    int ends[2];
    if (::pipe(ends) != 0) ::_exit(3);
    const pid_t stands_still = ::getpid();
    if (::fork() == 0) {
      ::kill(stands_still, SIGSTOP);
      std::this_thread::sleep_for(std::chrono::milliseconds(210));
      ::kill(stands_still, SIGCONT);
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      ::_exit(::write(ends[1], "", 1) == 1 ? 0 : 1);
    }
    char answer = 0;
    if (::read(ends[0], &answer, 1) != 1) ::_exit(4);
    set(*disk, &TestDisk::State::hangs, false);
    posts.run_until([&done] { return done; });
    ::_exit(logged.empty() ? 0 : 2);
  });
  CHECK(end.status == 0);
}

TEST_CASE("Journal: a disk that hangs for ever does not keep its process from ending") {
  const auto disk = std::make_shared<TestDisk::State>();
  Posts posts;
  const LoggedLines log;
  JournalOptions options;
  options.commit_limit = std::chrono::milliseconds(50);
  set(*disk, &TestDisk::State::hangs, true);
  {
    Journal journal(std::make_unique<TestDisk>(disk), posts.post(), options);
    journal.commit({{"n", "1"}}, [] {});
  }
  REQUIRE_FALSE(logged.empty());
  CHECK_THAT(logged.back(), Catch::Contains("the disk hangs; what it has not taken is lost"));
  set(*disk, &TestDisk::State::hangs, false);  // lets the disk's thread end
}

// A disk that fails, and one commit that it has not taken.
struct Failing {
  Failing() {
    set(*disk, &TestDisk::State::fails, true);
    JournalOptions options;
    options.first_retry = std::chrono::hours(1);
    options.last_retry = std::chrono::hours(1);
    journal = std::make_unique<Journal>(std::make_unique<TestDisk>(disk), posts.post(), options);
    bool done = false;
    journal->commit({{"n", "1"}}, [&done] { done = true; });
    posts.run_until([&done] { return done; });
  }
  const std::shared_ptr<TestDisk::State> disk = std::make_shared<TestDisk::State>();
  Posts posts;
  std::unique_ptr<Journal> journal;
};

TEST_CASE("Journal: it says at its end what a disk that fails has not taken") {
  const LoggedLines log;
  Failing its;
  const std::size_t before = logged.size();
  its.journal.reset();
  REQUIRE(logged.size() == before + 1);
  CHECK_THAT(logged.back(), Catch::Contains("the disk is full; what was decided in the last ") &&
                                Catch::Contains(" s is not kept, and lost with this ddprund"));
}

TEST_CASE("Journal: it tries once more at its end, and says so if nothing is lost") {
  const LoggedLines log;
  Failing its;
  set(*its.disk, &TestDisk::State::fails, false);
  its.journal.reset();
  CHECK(logged.back() == "disk is written again, and up to date");
  CHECK(its.disk->rows == Rows{{"n", "1"}});
}

namespace {
class NeverWritten : public BatchWriter {
 public:
  void commit(const Batch&) override { throw std::runtime_error(trouble()); }
  std::string name() const override { return "disk"; }
  std::string trouble() const override { return "the disk is full"; }
};
}  // namespace

TEST_CASE(
    "Journal: one that was never written is not up to date at its end, without any row, too") {
  const LoggedLines log;
  logged.clear();
  Posts posts;
  Journal(std::make_unique<NeverWritten>(), posts.post());
  for (const std::string& line : logged) CHECK_THAT(line, !Catch::Contains("up to date"));
}

TEST_CASE("Journal: a disk that is known to hang is not waited for again at the end") {
  for (const bool is_shared : {false, true}) {
    CAPTURE(is_shared);
    const auto disk = std::make_shared<TestDisk::State>();
    const LoggedLines log;
    JournalOptions options;
    options.is_shared = is_shared;
    options.commit_limit = std::chrono::milliseconds(2'000);
    set(*disk, &TestDisk::State::hangs, true);
    Posts posts;
    auto journal =
        std::make_unique<Journal>(std::make_unique<TestDisk>(disk), posts.post(), options);
    journal->commit({{"n", "1"}}, [] {});
    posts.run_until([&] { return journal->trouble().has_value(); });
    const Clock::time_point begun = Clock::now();
    journal.reset();
    CHECK(Clock::now() - begun < std::chrono::milliseconds(1'500));
    CHECK_THAT(logged.back(), Catch::Contains("the disk hangs; what it has not taken is lost"));
    set(*disk, &TestDisk::State::hangs, false);  // lets the disk's thread end
  }
}

TEST_CASE("Journal: a disk that fails is not tried with each batch") {
  const auto disk = std::make_shared<TestDisk::State>();
  Posts posts;
  const LoggedLines log;
  JournalOptions options;
  options.first_retry = std::chrono::milliseconds(200);
  options.last_retry = std::chrono::milliseconds(400);
  set(*disk, &TestDisk::State::fails, true);
  const Clock::time_point begun = Clock::now();
  {
    Journal journal(std::make_unique<TestDisk>(disk), posts.post(), options);
    int num_done = 0;
    for (int i = 1; i <= 200; ++i) {
      journal.commit({{"n", std::to_string(i)}}, [&] { ++num_done; });
      posts.run_until([&] { return num_done == i; });
    }
    {
      std::unique_lock lock(disk->mutex);
      REQUIRE(disk->wakes.wait_for(lock, std::chrono::seconds(30),
                                   [&] { return disk->num_tries >= 4; }));
    }
    CHECK(Clock::now() - begun >= std::chrono::milliseconds(200 + 400 + 400));
    CHECK(journal.trouble());
    set(*disk, &TestDisk::State::fails, false);
    posts.run_until([&] { return logged.size() == 2; });
    CHECK(disk->rows == Rows{{"n", "200"}});
  }
}

TEST_CASE("Journal: one that is on a full disk at its start is read, and jobs go on in memory") {
  TempDirectory directory;
  Posts posts;
  const LoggedLines log;
  JournalFile(directory.path(), Durability::kProcess).commit({{"a", "1"}});
  {
    std::unique_ptr<Journal> journal;
    int num_done = 0;
    {
      FullDisk full;
      auto file = std::make_unique<JournalFile>(directory.path(), Durability::kProcess);
      CHECK(file->load().rows == Rows{{"a", "1"}});
      journal = std::make_unique<Journal>(std::move(file), posts.post());
      journal->commit({{"b", "2"}}, [&] { ++num_done; });
      posts.run_until([&] { return num_done == 1; });
      CHECK(journal->trouble());
    }
    posts.run_until([&] { return logged.size() == 2; });
  }
  CHECK(JournalFile(directory.path(), Durability::kProcess).load().rows ==
        Rows{{"a", "1"}, {"b", "2"}});
}

TEST_CASE("Journal: a new one on a full disk is made when there is room") {
  TempDirectory directory;
  Posts posts;
  const LoggedLines log;
  {
    std::unique_ptr<Journal> journal;
    int num_done = 0;
    {
      FullDisk full;
      auto file = std::make_unique<JournalFile>(directory.path(), Durability::kProcess);
      CHECK(file->load().rows.empty());
      CHECK_FALSE(file->trouble().empty());
      journal = std::make_unique<Journal>(std::move(file), posts.post());
      journal->commit({{"b", "2"}}, [&] { ++num_done; });
      posts.run_until([&] { return num_done == 1; });
    }
    posts.run_until([&] { return logged.size() == 2; });
  }
  CHECK(JournalFile(directory.path(), Durability::kProcess).load().rows == Rows{{"b", "2"}});
}

}  // namespace
}  // namespace ddprun::journal
