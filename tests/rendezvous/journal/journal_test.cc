// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/journal/journal.h"

#include <signal.h>
#include <sys/resource.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>

#include "tests/support/catch.h"
#include "tests/support/temp_directory.h"

namespace ddprun::journal {
namespace {

using test::TempDirectory;

// The io thread of a test: what is posted to it runs where the test waits.
class Posts {
 public:
  std::function<void(std::function<void()>)> post() {
    return [this](std::function<void()> call) {
      const std::lock_guard lock(mutex_);
      calls_.push_back(std::move(call));
      wakes_.notify_one();
    };
  }
  void run_until(const std::function<bool()>& done) {
    while (!done()) {
      std::unique_lock lock(mutex_);
      REQUIRE(wakes_.wait_for(lock, std::chrono::seconds(30), [&] { return !calls_.empty(); }));
      const auto call = std::move(calls_.front());
      calls_.pop_front();
      lock.unlock();
      call();
    }
  }

 private:
  std::mutex mutex_;
  std::condition_variable wakes_;
  std::deque<std::function<void()>> calls_;
};

// As a disk that is full: no file of this process grows any more.
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

TEST_CASE("Journal: on a full disk jobs go on, it is said once, and made up for later") {
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
    posts.run_until([&] { return logged.size() == 2; });  // by itself: nobody commits now
  }
  CHECK_THAT(logged.at(0), Catch::Contains("jobs go on in memory"));
  CHECK_THAT(logged.at(1), Catch::Contains("is written again, and up to date"));
  CHECK(JournalFile(directory.path(), Durability::kProcess).load().rows ==
        Rows{{"before", "1"}, {"during", std::string(9000, 't')}});
}

}  // namespace
}  // namespace ddprun::journal
