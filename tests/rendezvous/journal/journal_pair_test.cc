// SPDX-License-Identifier: Apache-2.0
// The journal of one of a pair of ddprunds, which earlier versions had, is refused.
#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>

#include "rendezvous/journal/journal_file.h"
#include "tests/rendezvous/journal/journal_files.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/support/temp_directory.h"

namespace ddprun::journal {
namespace {

namespace fs = std::filesystem;
using test::Contains;
using test::TempDirectory;

// Each start refuses it, and nothing of it is set aside.
void check_refused(const TempDirectory& directory) {
  for (int start = 0; start < 2; ++start) {
    std::string what;
    CHECK(test::code_of([&] { JournalFile(directory.path(), Durability::kProcess).load(); },
                        &what) == ErrorCode::kInvalidArgument);
    CHECK_THAT(what, Contains("is of a ddprund with --standby or --standby-of, which are gone") &&
                         Contains("give an empty --state-dir (docs/ha.md)"));
  }
  CHECK(std::all_of(
      fs::directory_iterator(directory.path()), fs::directory_iterator(), [](const auto& file) {
        const std::string name = file.path().filename();
        return name == "lock" ||
               (name.starts_with("journal.db") && name.find("damaged") == std::string::npos);
      }));
}

// golden/format1_pair.db was written by a leader with --standby: a job runs, a standby was in sync.
TEST_CASE("JournalFile: a pair's journal is refused by name, and stays as it is") {
  TempDirectory directory;
  const std::string file = directory.path("journal.db");
  fs::copy_file(DDPRUN_PAIR_JOURNAL, file);
  std::optional<testing::ReadOnlyLog> in_the_way;
  SECTION("it is whole") {}
  SECTION("a row of it was changed on the disk") {
    testing::run_sql(file, "UPDATE rows SET content = 'x' WHERE key LIKE 'jobs/%'");
  }
  SECTION("a row that says that it is a pair's was changed on the disk") {
    testing::run_sql(file, "UPDATE rows SET content = 'x' WHERE key LIKE 'leader/%'");
  }
  SECTION("it is damaged beyond its rows") { testing::run_sql(file, "DROP TABLE clock"); }
  SECTION("it can't be written") { in_the_way.emplace(file + "-wal"); }
  check_refused(directory);
}

TEST_CASE("JournalFile: a job that waits for its nodes to follow a leader is a pair's") {
  TempDirectory directory;
  JournalFile(directory.path(), Durability::kProcess).commit({{"jobs/1/held", "{}"}});
  check_refused(directory);
}

}  // namespace
}  // namespace ddprun::journal
