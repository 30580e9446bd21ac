// SPDX-License-Identifier: Apache-2.0
// A journal whose files are removed, moved or replaced while it is in use.
#include <fcntl.h>
#include <signal.h>
#include <sqlite3.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "common/unique_fd.h"
#include "rendezvous/journal/journal_file.h"
#include "tests/rendezvous/journal/journal_files.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/support/forked_child.h"
#include "tests/support/log_lines.h"
#include "tests/support/temp_directory.h"

namespace ddprun::journal {
namespace {

namespace fs = std::filesystem;
using test::TempDirectory;

const Rows kBoth = {{"a", "1"}, {"b", "2"}};

// The place is checked at each commit.
constexpr Clock::duration kAlways{0};

Rows rows_in(const std::string& directory) {
  return JournalFile(directory, Durability::kProcess).load().rows;
}

// Files that nobody changed: a size alone may be that of the lock's process number, too.
int num_with_theirs(const std::string& directory) {
  int count = 0;
  for (const auto& entry : fs::directory_iterator(directory)) {
    std::ifstream file(entry.path());
    count += std::string(std::istreambuf_iterator<char>(file), {}) == "theirs";
  }
  return count;
}

// A journal with row a in the directory "state".
struct InUse {
  InUse() {
    file.load();
    file.commit({{"a", "1"}});
  }
  const TempDirectory directory;
  const std::string state = directory.path("state");
  JournalFile file{state, Durability::kProcess, kAlways};
};

}  // namespace

TEST_CASE("journal place: a directory that was removed is made anew, with all rows") {
  InUse use;
  fs::remove_all(use.state);
  use.file.commit({{"b", "2"}});
  CHECK((fs::status(use.state).permissions() & fs::perms::all) == fs::perms::owner_all);
  CHECK(use.file.trouble().empty());
  fs::copy(use.state, use.directory.path("taken"));  // the files after a kill
  CHECK(rows_in(use.directory.path("taken")) == kBoth);
}

TEST_CASE("journal place: a link in its place that leads nowhere is noticed") {
  InUse use;
  fs::rename(use.state, use.directory.path("elsewhere"));
  fs::create_symlink(use.state, use.state);
  CHECK(test::code_of([&] { use.file.commit({{"b", "2"}}); }));
  CHECK_THAT(use.file.trouble(), test::Contains("was removed, moved or replaced"));
}

TEST_CASE("journal place: a directory that was moved stays as it was") {
  InUse use;
  fs::rename(use.state, use.directory.path("elsewhere"));
  use.file.commit({{"b", "2"}});
  CHECK(rows_in(use.directory.path("elsewhere")) == Rows{{"a", "1"}});
  CHECK(testing::live_rows(use.state) == kBoth);
}

// One line names the file and what happened to it, and a new journal has all.
void check_told_once(const InUse& use, const test::LogLines& log, const char* name,
                     const char* what) {
  CHECK(log.all() ==
        std::vector<std::string>{use.state + "/" + name + what +
                                 " while it was in use: a new journal gets all that is known"});
  fs::copy(use.state, use.directory.path("taken"));  // the files after a kill
  CHECK(rows_in(use.directory.path("taken")) == kBoth);
}

TEST_CASE("journal place: a file that was removed alone costs no row, and is named once") {
  for (const char* name : {"journal.db", "journal.db-wal", "lock"}) {
    CAPTURE(name);
    InUse use;
    const test::LogLines log;
    fs::remove(use.state + "/" + name);
    use.file.commit({{"b", "2"}});
    use.file.commit({{"b", "2"}});
    check_told_once(use, log, name, " was removed, moved or replaced");
  }
}

TEST_CASE("journal place: a file that is cut off costs nothing that is still known") {
  for (const char* name : {"journal.db", "journal.db-wal"}) {
    CAPTURE(name);
    InUse use;
    const test::LogLines log;
    fs::resize_file(use.state + "/" + name, 0);
    use.file.commit({{"b", "2"}});
    check_told_once(use, log, name, " was cut off");
  }
}

TEST_CASE("journal place: a log that was folded in and made empty is not cut off") {
  InUse use;
  const test::LogLines log;
  use.file.commit({{"gangs/1/spec", "x"}});
  use.file.commit({{"gangs/1/spec", std::nullopt}});
  REQUIRE(fs::file_size(use.state + "/journal.db-wal") == 0);
  use.file.commit({{"b", "2"}});
  for (int row = 0; row < 1500; ++row) use.file.commit({{"b", "2"}});
  CHECK(log.all().empty());
  CHECK(fs::file_size(use.state + "/journal.db-wal") < 8'000'000);
  CHECK(testing::live_rows(use.state) == kBoth);
}

TEST_CASE("journal place: a log that was replaced is no log of it, and is set aside") {
  InUse use;
  const std::string log = use.state + "/journal.db-wal";
  fs::rename(log, log + ".moved");
  std::ofstream(log) << "theirs";
  use.file.commit({{"b", "2"}});
  CHECK(testing::live_rows(use.state) == kBoth);
  CHECK(num_with_theirs(use.state) == 1);
}

// A journal with row a that can be read and not opened.
struct Unwritable {
  explicit Unwritable(const std::function<void(const std::string& log)>& change = {}) {
    {
      JournalFile before(state, Durability::kProcess);
      before.load();
      before.commit({{"a", "1"}});
      if (change) fs::copy(state, directory.path("killed"));
    }
    if (change) {
      fs::remove_all(state);
      fs::rename(directory.path("killed"), state);
      change(log);
    }
    in_the_way = std::make_unique<testing::ReadOnlyLog>(log);
    file = std::make_unique<JournalFile>(state, Durability::kProcess, kAlways);
    REQUIRE_FALSE(file->trouble().empty());
    content = file->load();
  }
  int num_aside() const {
    int number = 0;
    for (const auto& entry : fs::directory_iterator(state)) {
      number += entry.path().filename().string().starts_with("journal.db.damaged-");
    }
    return number;
  }
  const TempDirectory directory;
  const std::string state = directory.path("state");
  const std::string log = state + "/journal.db-wal";
  Content content;
  std::unique_ptr<testing::ReadOnlyLog> in_the_way;
  std::unique_ptr<JournalFile> file;
};

TEST_CASE("journal place: a file that could not be opened at the start is used once it can be") {
  Unwritable its;
  its.in_the_way.reset();
  its.file->commit({{"b", "2"}});
  CHECK(testing::live_rows(its.state) == kBoth);
  CHECK(its.num_aside() == 0);
}

TEST_CASE(
    "journal place: a file that was replaced since a start that could not open it is set aside") {
  Unwritable its;
  {
    JournalFile other(its.directory.path("other"), Durability::kProcess);
    other.load();
    other.commit({{"c", "3"}});
  }
  its.in_the_way.reset();
  fs::remove(its.state + "/journal.db");
  fs::copy(its.directory.path("other") + "/journal.db", its.state + "/journal.db");
  const test::LogLines log;
  its.file->commit({{"b", "2"}});
  CHECK(testing::live_rows(its.state) == kBoth);
  CHECK(its.num_aside() == 1);
  CHECK_THAT(log.all().at(0), test::Contains("journal.db was removed, moved or replaced while it "
                                             "could not be written"));
}

TEST_CASE("journal place: a log that was away at the start, and is back, is not mixed in") {
  const auto moved = [](const std::string& log) { fs::rename(log, log + ".moved"); };
  Unwritable its(moved);
  CHECK(its.content.losses.size() == 1);
  fs::rename(its.log + ".moved", its.log);
  its.in_the_way.reset();
  its.file->commit({{"b", "2"}});
  CHECK(testing::live_rows(its.state) == Rows{{"b", "2"}});
  CHECK(its.num_aside() > 0);
}

TEST_CASE(
    "journal place: a directory that was removed since a start that could not open it is made "
    "anew") {
  Unwritable its;
  its.in_the_way.reset();
  fs::remove_all(its.state);
  its.file->commit({{"b", "2"}});
  CHECK(its.file->trouble().empty());
  CHECK(testing::live_rows(its.state) == kBoth);
}

TEST_CASE("journal place: one that another process has by now is left alone") {
  InUse use;
  fs::rename(use.state, use.directory.path("elsewhere"));
  JournalFile other(use.state, Durability::kProcess);
  other.load();
  other.commit({{"c", "3"}});
  for (int again = 0; again < 2; ++again) {
    CHECK_THAT(test::error_of([&] {
                 use.file.commit({{"b", "2"}});
               }).what(),
               test::Contains("is in use by pid"));
  }
  other.commit({{"d", "4"}});
  CHECK(testing::live_rows(use.state) == Rows{{"c", "3"}, {"d", "4"}});
}

TEST_CASE("journal place: the journal of the other one is set aside once that is gone") {
  InUse use;
  fs::rename(use.state, use.directory.path("elsewhere"));
  {
    JournalFile other(use.state, Durability::kProcess);
    other.load();
    other.commit({{"c", "3"}});
  }
  use.file.commit({{"b", "2"}});
  CHECK(testing::live_rows(use.state) == kBoth);
  int num_aside = 0;
  for (const auto& entry : fs::directory_iterator(use.state)) {
    num_aside += entry.path().filename().string().starts_with("journal.db.damaged-");
  }
  CHECK(num_aside == 1);
}

TEST_CASE(
    "journal place: a removed journal is made anew at the end, too, and files in its place are "
    "kept") {
  const TempDirectory directory;
  const std::string state = directory.path("state");
  {
    JournalFile file(state, Durability::kProcess);
    file.load();
    file.commit({{"a", "1"}});
    fs::rename(state, directory.path("elsewhere"));
    fs::create_directory(state);
    std::ofstream(state + "/journal.db") << "theirs";
    std::ofstream(state + "/journal.db-wal") << "theirs";
  }
  CHECK(rows_in(state) == Rows{{"a", "1"}});
  CHECK(num_with_theirs(state) == 2);
}

TEST_CASE("journal place: the end looks again, however short ago the last look was") {
  const TempDirectory directory;
  const std::string state = directory.path("state");
  {
    JournalFile file(state, Durability::kProcess, std::chrono::hours(1));
    file.load();
    file.commit({{"a", "1"}});
    fs::remove_all(state);
    file.commit({{"b", "2"}});
    CHECK_FALSE(fs::exists(state));
  }
  CHECK(rows_in(state) == kBoth);
}

TEST_CASE("journal place: nobody else opens the database while it is in use") {
  InUse use;
  CHECK(test::run_forked([&] {
          sqlite3* database = nullptr;
          sqlite3_open((use.state + "/journal.db").c_str(), &database);
          const int code = sqlite3_exec(database, "BEGIN IMMEDIATE", nullptr, nullptr, nullptr);
          ::_exit(code == SQLITE_BUSY ? 0 : 1);
        }).status == 0);
}

TEST_CASE("journal place: a second ddprund without the lock file is told of the first one") {
  InUse use;
  fs::remove(use.state + "/lock");
  const std::string told = "journal.db is in use by pid " + std::to_string(::getpid());
  CHECK(test::run_forked([&] {
          const Error error = test::error_of([&] { rows_in(use.state); });
          if (error.code() != ErrorCode::kUnavailable) ::_exit(2);
          if (std::string(error.what()).find(told) != std::string::npos) ::_exit(0);
        }).status == 0);
  use.file.commit({{"b", "2"}});
  CHECK(testing::live_rows(use.state) == kBoth);
}

TEST_CASE("journal place: a program that reads the database keeps no ddprund from its jobs") {
  const test::TempDirectory directory;
  const std::string state = directory.path("state");
  JournalFile(state, Durability::kProcess).commit({{"a", "1"}});
  int ends[2];
  REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
  UniqueFd read_end(ends[0]), write_end(ends[1]);
  const pid_t reader = ::fork();
  if (reader == 0) {
    ::prctl(PR_SET_NAME, "reader");
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    sqlite3* database = nullptr;
    sqlite3_open((state + "/journal.db").c_str(), &database);
    const int code =
        sqlite3_exec(database, "SELECT * FROM sqlite_schema", nullptr, nullptr, nullptr);
    if (code == SQLITE_OK && ::write(write_end.get(), "r", 1) == 1) ::pause();
    ::_exit(1);
  }
  write_end.reset();
  char ready = 0;
  REQUIRE(::read(read_end.get(), &ready, 1) == 1);
  JournalFile file(state, Durability::kProcess);
  CHECK(file.load().rows == Rows{{"a", "1"}});
  CHECK_FALSE(file.trouble().empty());
  ::kill(reader, SIGKILL);
  REQUIRE(::waitpid(reader, nullptr, 0) == reader);
  file.commit({{"b", "2"}});
  CHECK(file.trouble().empty());
  CHECK(testing::live_rows(state) == kBoth);
}

TEST_CASE(
    "journal place: an error is told while no directory can be made, and writing goes on later") {
  InUse use;
  fs::rename(use.state, use.directory.path("elsewhere"));
  std::ofstream(use.state) << "a file";
  CHECK(test::code_of([&] { use.file.commit({{"b", "2"}}); }));
  CHECK_THAT(use.file.trouble(), test::Contains("was removed, moved or replaced"));
  fs::remove(use.state);
  use.file.commit({{"b", "2"}});
  CHECK(use.file.trouble().empty());
  CHECK(testing::live_rows(use.state) == kBoth);
}

}  // namespace ddprun::journal
