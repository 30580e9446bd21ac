// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/journal/journal_file.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include "tests/rendezvous/journal/journal_files.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/support/forked_child.h"
#include "tests/support/temp_directory.h"

namespace ddprun::journal {
namespace {

using test::TempDirectory;

template <typename Call>
std::string refusal(Call&& call) {
  std::string what;
  const auto code = test::code_of(call, &what);
  CHECK((code == ErrorCode::kUnavailable || code == ErrorCode::kUnsupported));
  return what;
}

Rows kept_in(const std::string& directory) {
  return JournalFile(directory, Durability::kProcess).load().rows;
}

TEST_CASE("JournalFile: committed rows are there again, whatever the durability") {
  const auto durability = GENERATE(Durability::kProcess, Durability::kDisk);
  TempDirectory directory;
  const std::string text("two lines\nand a \0 byte, ü", 24);
  {
    JournalFile file(directory.path("state"), durability);
    CHECK(file.load().rows.empty());
    file.commit({{"a", "1"}, {"b", "2"}, {"c", "3"}});
    file.commit({{"a", text}, {"b", std::nullopt}, {"none", std::nullopt}});
    file.commit({});
  }
  JournalFile file(directory.path("state"), durability);
  const Content content = file.load();
  CHECK(content.rows == Rows{{"a", text}, {"c", "3"}});
  CHECK(content.losses.empty());
  CHECK(content.clock_shift == Clock::duration::zero());
}

TEST_CASE("JournalFile: its files are for their owner alone") {
  TempDirectory directory;
  JournalFile file(directory.path("state"), Durability::kProcess);
  file.commit({{"a", "1"}});
  const auto mode = [&](const std::string& name) {
    struct stat facts {};
    REQUIRE(::stat(directory.path(name).c_str(), &facts) == 0);
    return facts.st_mode & 0777;
  };
  CHECK(mode("state") == 0700);
  CHECK(mode("state/journal.db") == 0600);
  CHECK(mode("state/journal.db-wal") == 0600);
  CHECK(mode("state/lock") == 0600);
}

TEST_CASE("JournalFile: a second process is told who has the directory") {
  TempDirectory directory;
  JournalFile file(directory.path(), Durability::kProcess);
  file.load();
  const std::string what = refusal([&] { JournalFile(directory.path(), Durability::kProcess); });
  CHECK_THAT(what, Catch::Contains("is in use by pid " + std::to_string(::getpid())));
}

TEST_CASE("JournalFile: a directory that can't be written is named") {
  TempDirectory directory;
  const std::string below_a_file = directory.path("file") + "/state";
  ::close(::creat(directory.path("file").c_str(), 0600));
  const std::string what = refusal([&] { JournalFile(below_a_file, Durability::kProcess); });
  CHECK_THAT(what, Catch::Contains("can't make " + below_a_file + ": Not a directory"));
}

constexpr const char* kFiles[] = {"journal.db", "journal.db-wal", "journal.db-shm",
                                  "journal.db-journal", "lock"};

TEST_CASE("JournalFile: files that others could change are refused, and those others are named") {
  const auto refused_for = [](const std::string& directory) {
    const Error error = test::error_of([&] { JournalFile(directory, Durability::kProcess); });
    CHECK(error.code() == ErrorCode::kInvalidArgument);
    return std::string(error.what());
  };
  const auto check = [&](const TempDirectory& directory, const std::string& path) {
    CAPTURE(path);
    REQUIRE(::chmod(path.c_str(), 0707) == 0);
    CHECK_THAT(refused_for(directory.path()),
               Catch::Contains("won't go on with " + path + ": everybody could change it"));
    REQUIRE(::chmod(path.c_str(), 0770) == 0);
    if (::geteuid() != 0) return;
    REQUIRE(::chown(path.c_str(), 0, 1234) == 0);
    CHECK_THAT(refused_for(directory.path()), Catch::Contains(path + ": group 1234 could"));
    REQUIRE(::chown(path.c_str(), 1234, 0) == 0);
    CHECK_THAT(refused_for(directory.path()), Catch::Contains(path + ": it belongs to user 1234"));
    REQUIRE(::chown(path.c_str(), 0, 0) == 0);
  };
  const TempDirectory directory;
  check(directory, directory.path());
  CHECK(kept_in(directory.path()).empty());
  for (const char* name : kFiles) {
    const TempDirectory its;
    std::ofstream(its.path(name)).flush();
    check(its, its.path(name));
  }
}

TEST_CASE("JournalFile: a new journal of another user is not taken either") {
  if (::geteuid() != 0) DDPRUN_SKIP("only root can give files to another user");
  const TempDirectory directory;
  JournalFile(directory.path(), Durability::kProcess).commit({{"a", "1"}});
  const std::string made = directory.path("journal.db.new");
  std::filesystem::copy(directory.path("journal.db"), made);
  REQUIRE(::chown(made.c_str(), 1234, 1234) == 0);
  CHECK(test::code_of([&] { JournalFile(directory.path(), Durability::kProcess); }) ==
        ErrorCode::kInvalidArgument);
  REQUIRE(std::filesystem::remove(made));
  CHECK(kept_in(directory.path()) == Rows{{"a", "1"}});
}

TEST_CASE("JournalFile: a pipe in the place of a file is refused, and holds nobody up") {
  for (const char* name : kFiles) {
    const TempDirectory directory;
    REQUIRE(::mkfifo(directory.path(name).c_str(), 0600) == 0);
    const Error error =
        test::error_of([&] { JournalFile(directory.path(), Durability::kProcess); });
    CHECK(error.code() == ErrorCode::kInvalidArgument);
    CHECK_THAT(error.what(), Catch::Contains(directory.path(name) + ": it is no regular file"));
  }
}

TEST_CASE("JournalFile: a link in the place of a file is refused as one") {
  for (const char* name : kFiles) {
    const TempDirectory directory;
    std::filesystem::create_symlink(directory.path("elsewhere"), directory.path(name));
    const Error error =
        test::error_of([&] { JournalFile(directory.path(), Durability::kProcess); });
    CHECK(error.code() == ErrorCode::kInvalidArgument);
    CHECK_THAT(error.what(), Catch::Contains(directory.path(name) + ": it is a link") &&
                                 Catch::Contains("move it away"));
    CHECK_FALSE(std::filesystem::exists(directory.path("elsewhere")));
  }
}

TEST_CASE("JournalFile: a log that can't be read is refused, not left out") {
  const TempDirectory directory;
  JournalFile(directory.path(), Durability::kProcess).commit({{"a", "1"}});
  const std::string log = directory.path("journal.db-wal");
  SECTION("a directory") {
    REQUIRE(std::filesystem::create_directory(log));
    CHECK_THAT(refusal([&] { JournalFile(directory.path(), Durability::kProcess); }),
               Catch::Contains(log + ": Is a directory"));
  }
  SECTION("root's file") {
    if (::geteuid() != 0) return;
    std::ofstream(log) << "a log";
    REQUIRE(::chmod(log.c_str(), 0600) == 0);
    for (const char* mine : {"", "/journal.db", "/lock"}) {
      REQUIRE(::chown((directory.path() + mine).c_str(), 1234, 1234) == 0);
    }
    CHECK(test::run_forked([&] {
            if (::seteuid(1234) != 0) ::_exit(2);
            std::string what;
            const auto code =
                test::code_of([&] { JournalFile(directory.path(), Durability::kProcess); }, &what);
            const bool is_named = what == "can't write to " + log + ": Permission denied";
            ::_exit(code == ErrorCode::kUnavailable && is_named ? 0 : 3);
          }).status == 0);
  }
}

TEST_CASE("JournalFile: nothing of a gang's erased environment stays in the files") {
  TempDirectory directory;
  JournalFile file(directory.path(), Durability::kProcess);
  file.load();
  const std::string secret = "TOKEN=which nobody is to find";
  const auto holds_it = [&] {
    std::ostringstream all;
    for (const auto& entry : std::filesystem::directory_iterator(directory.path())) {
      if (entry.file_size() > 0) all << std::ifstream(entry.path()).rdbuf();
    }
    return all.str().find(secret) != std::string::npos;
  };
  file.commit({{"gangs/1/spec", secret + std::string(9000, 'x')}, {"gangs/1/state", "queued"}});
  CHECK(holds_it());
  file.commit({{"gangs/1/spec", std::nullopt}, {"gangs/1/state", "ended"}});
  CHECK_FALSE(holds_it());
  CHECK(testing::live_rows(directory.path()) == Rows{{"gangs/1/state", "ended"}});
}

TEST_CASE("JournalFile: a newer format is refused, and left as it is") {
  TempDirectory directory;
  JournalFile(directory.path(), Durability::kProcess).commit({{"a", "1"}});
  testing::run_sql(directory.path("journal.db"),
                   "CREATE TABLE format(number); PRAGMA user_version = 2");
  for (int i = 0; i < 2; ++i) {
    const std::string what = refusal([&] { JournalFile(directory.path(), Durability::kProcess); });
    CHECK_THAT(what, Catch::Contains("is of a newer ddprund (format 2, this one knows 1)"));
  }
  testing::run_sql(directory.path("journal.db"), "PRAGMA user_version = 1");
  CHECK(kept_in(directory.path()) == Rows{{"a", "1"}});
}

TEST_CASE("JournalFile: times of another boot are moved by how much the clock was set back") {
  TempDirectory directory;
  JournalFile(directory.path(), Durability::kProcess).commit({{"a", "1"}});
  testing::run_sql(
      directory.path("journal.db"),
      "UPDATE clock SET boot = 'another', monotonic_ns = monotonic_ns + 3600000000000");
  JournalFile file(directory.path(), Durability::kProcess);
  const auto shift = file.load().clock_shift;
  CHECK(shift > -std::chrono::seconds(3601));
  CHECK(shift < -std::chrono::seconds(3500));
}

// Row "n" counts the commits. "k" has the same number, so that half a commit would show.
TEST_CASE(
    "JournalFile: a process that is killed at any moment leaves whole commits, all that it "
    "reported") {
  std::mt19937 random(20261122);
  for (int i = 0; i < 15; ++i) {
    TempDirectory directory;
    int reports[2];
    REQUIRE(::pipe(reports) == 0);
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      JournalFile file(directory.path(), Durability::kProcess);
      for (int n = 1;; ++n) {
        const std::string number = std::to_string(n);
        file.commit({{"n", number},
                     {"row" + std::to_string(n % 50), std::string(2000, 'x')},
                     {"k", number}});
        if (::write(reports[1], &n, sizeof n) < 0) ::_exit(0);
      }
    }
    ::close(reports[1]);
    const int kill_at = 1 + static_cast<int>(random() % 300);
    int reported = 0;
    for (int n = 0; reported < kill_at && ::read(reports[0], &n, sizeof n) == sizeof n;)
      reported = n;
    ::kill(child, SIGKILL);
    for (int n = 0; ::read(reports[0], &n, sizeof n) == sizeof n;) reported = n;
    ::waitpid(child, nullptr, 0);
    ::close(reports[0]);
    JournalFile file(directory.path(), Durability::kProcess);
    const Content content = file.load();
    CHECK(content.losses.empty());
    CHECK(content.rows.at("n") == content.rows.at("k"));
    CHECK(std::stoi(content.rows.at("n")) >= reported);
    CHECK(std::stoi(content.rows.at("n")) <= reported + 1);
  }
}

}  // namespace
}  // namespace ddprun::journal
