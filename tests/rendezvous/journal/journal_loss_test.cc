// SPDX-License-Identifier: Apache-2.0
// Rows that were lost: what is left is not taken for all by any later start.
#include <signal.h>
#include <sqlite3.h>
#include <sys/resource.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <sstream>
#include <string>

#include "rendezvous/journal/journal_file.h"
#include "tests/support/catch.h"
#include "tests/support/temp_directory.h"

namespace ddprun::journal {
namespace {

using test::TempDirectory;

const char kNote[] = "leader/copy";

Batch note_that_rows_are_lost(const Rows& left) {
  return {{kNote, "of " + std::to_string(left.size())}};
}

Content load_noting(const std::string& directory) {
  return JournalFile(directory, Durability::kProcess, note_that_rows_are_lost).load();
}
Content load_only(const std::string& directory) {
  return JournalFile(directory, Durability::kProcess).load();
}

// Of one that was killed after three commits; its log has `left` of them.
struct LostEnd {
  LostEnd(int left, Durability durability, const std::string& second_row) {
    std::filesystem::create_directories(state);
    JournalFile file(directory.path("live"), durability);
    file.load();
    const auto commit = [&](int number, const std::string& key) {
      file.commit({{key, std::to_string(number)}});
      if (number != left) return;
      for (const char* name : {"journal.db", "journal.db-wal"}) copy(name);
    };
    commit(1, "a");
    commit(2, second_row);
    commit(3, "c");
    copy("lock");
  }

  void copy(const std::string& name) const {
    std::filesystem::copy_file(directory.path("live") + "/" + name, state + "/" + name);
  }

  // The machine has ended since.
  void reboot() const {
    std::ifstream note(state + "/lock");
    std::string pid, commits, boot, how, synced;
    note >> pid >> commits >> boot >> how >> synced;
    REQUIRE(note);
    std::ofstream(state + "/lock", std::ios::trunc)
        << pid << ' ' << commits << " another-boot " << how << ' ' << synced << '\n';
  }

  // Once only, and that it is there whoever starts next.
  void check_noted() const {
    const Content content = load_noting(state);
    CHECK_FALSE(content.losses.empty());
    CHECK(content.rows.contains(kNote));
    const Content again = load_only(state);
    CHECK(again.losses.empty());
    CHECK(again.rows == content.rows);
  }
  void check_not_noted() const {
    CHECK_FALSE(load_noting(state).rows.contains(kNote));
    CHECK_FALSE(load_only(state).rows.contains(kNote));
  }

  TempDirectory directory;
  const std::string state = directory.path("state");
};

void flip_a_row(const std::string& directory) {
  sqlite3* database = nullptr;
  REQUIRE(sqlite3_open((directory + "/journal.db").c_str(), &database) == SQLITE_OK);
  CHECK(sqlite3_exec(database, "UPDATE rows SET content = 'b' WHERE key = 'a'", nullptr, nullptr,
                     nullptr) == SQLITE_OK);
  sqlite3_close(database);
}

TEST_CASE("journal loss: what a damaged one's rows lack is noted with them, before they are told") {
  TempDirectory directory;
  const std::string state = directory.path("state");
  JournalFile(state, Durability::kProcess).commit({{"a", "1"}, {"b", "2"}});
  SECTION("it is whole") {
    CHECK(load_noting(state).rows == Rows{{"a", "1"}, {"b", "2"}});
    return;
  }
  flip_a_row(state);
  SECTION("a start that told nobody yet") {
    JournalFile file(state, Durability::kProcess, note_that_rows_are_lost);
    CHECK(file.load().rows == Rows{{"b", "2"}, {kNote, "of 1"}});
  }
  SECTION("one that was interrupted once the new one was whole") {
    load_noting(state);
    std::filesystem::rename(state + "/journal.db", state + "/journal.db.new");
    std::ofstream(state + "/journal.db") << "the damaged one";
  }
  const Content again = load_only(state);
  CHECK(again.losses.empty());
  CHECK(again.rows == Rows{{"b", "2"}, {kNote, "of 1"}});
}

TEST_CASE("journal loss: a log's end that the disk lost is noted, one that durability allows not") {
  SECTION("the machine ran on") { LostEnd(2, Durability::kProcess, "b").check_noted(); }
  SECTION("it ended, and nothing of it was synced") {
    const LostEnd lost(2, Durability::kProcess, "b");
    lost.reboot();
    CHECK(load_only(lost.state).may_lack_end);
    lost.check_not_noted();
  }
  SECTION("it ended, and a commit that was synced is lost, too") {
    const LostEnd lost(1, Durability::kProcess, "leader/term");
    lost.reboot();
    lost.check_noted();
  }
  SECTION("it ended, and none that was synced is lost") {
    const LostEnd lost(2, Durability::kProcess, "leader/term");
    lost.reboot();
    lost.check_not_noted();
  }
  SECTION("it ended, and all was synced") {
    const LostEnd lost(2, Durability::kDisk, "b");
    lost.reboot();
    lost.check_noted();
  }
  SECTION("nothing is lost") { LostEnd(3, Durability::kDisk, "b").check_not_noted(); }
}

TEST_CASE("journal loss: on a full disk it is noted with the first commit that can be written") {
  const LostEnd lost(2, Durability::kProcess, "b");
  rlimit before{}, none{};
  ::signal(SIGXFSZ, SIG_IGN);
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  none = before;
  none.rlim_cur = 1;
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &none) == 0);
  auto file =
      std::make_unique<JournalFile>(lost.state, Durability::kProcess, note_that_rows_are_lost);
  const Content content = file->load();
  ::setrlimit(RLIMIT_FSIZE, &before);
  CHECK(content.rows == Rows{{"a", "1"}, {"b", "2"}, {kNote, "of 2"}});
  CHECK_FALSE(file->trouble().empty());
  SECTION("and by the next start where none was") {
    file.reset();
    CHECK(load_noting(lost.state).rows == content.rows);
  }
  SECTION("which has the others, too") {
    file->commit({{"d", "4"}});
    file.reset();
    CHECK(load_only(lost.state).rows == Rows{{"a", "1"}, {"b", "2"}, {kNote, "of 2"}, {"d", "4"}});
  }
}

}  // namespace
}  // namespace ddprun::journal
