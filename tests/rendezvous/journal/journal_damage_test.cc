// SPDX-License-Identifier: Apache-2.0
// Journals that a disk or a person has damaged. Readable parts are kept, losses are said, and the
// next process always has a journal that it can write.
#include <signal.h>
#include <sqlite3.h>
#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <random>
#include <set>

#include "common/log.h"
#include "rendezvous/journal/journal_file.h"
#include "tests/rendezvous/journal/journal_files.h"
#include "tests/support/catch.h"
#include "tests/support/temp_directory.h"

namespace ddprun::journal {
namespace {

using test::TempDirectory;
constexpr int kRows = 200;

std::string content_of(int row) {
  return std::to_string(row) + std::string(static_cast<std::size_t>(row) % 700, 'c');
}

Rows make_journal(const std::string& directory) {
  JournalFile file(directory, Durability::kProcess);
  file.load();
  Rows rows;
  for (int row = 0; row < kRows; ++row) {
    const std::string key = "row" + std::to_string(row);
    file.commit({{key, content_of(row)}});
    rows[key] = content_of(row);
  }
  return rows;
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

// After any damage the journal has no row that never was, has lost none without a word, and can be
// written.
void check_usable(const std::string& directory, const Rows& written) {
  std::size_t kept = 0;
  {
    JournalFile file(directory, Durability::kProcess);
    const Content content = file.load();
    for (const auto& [key, text] : content.rows) {
      const auto found = written.find(key);
      REQUIRE(found != written.end());
      REQUIRE(found->second == text);
    }
    kept = content.rows.size();
    if (kept < written.size()) REQUIRE_FALSE(content.losses.empty());
    file.commit({{"new", "1"}});
  }
  JournalFile again(directory, Durability::kProcess);
  const Content content = again.load();
  REQUIRE(content.rows.count("new") == 1);
  REQUIRE(content.rows.size() == kept + 1);
}

TEST_CASE("journal damage: any flipped bit of the database") {
  TempDirectory whole;
  const Rows rows = make_journal(whole.path("state"));
  const std::string bytes = read_file(whole.path("state/journal.db"));
  REQUIRE(bytes.size() > 40'000);
  std::mt19937 random(1);
  for (int i = 0; i < 150; ++i) {
    TempDirectory copy;
    std::filesystem::copy(whole.path("state"), copy.path("state"),
                          std::filesystem::copy_options::recursive);
    std::string damaged = bytes;
    // Half of the flips hit the first pages, which have the tables' own structure.
    const std::size_t at = random() % (i % 2 == 0 ? damaged.size() : 4096);
    damaged[at] = static_cast<char>(damaged[at] ^ (1 << random() % 8));
    INFO("bit at byte " << at);
    write_file(copy.path("state/journal.db"), damaged);
    check_usable(copy.path("state"), rows);
  }
}

// The files in `state` that don't belong to the journal in use.
std::set<std::string> set_aside_in(const std::string& state) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(state)) {
    const std::string name = entry.path().filename();
    if (name.find(".damaged-") != name.npos) names.insert(name.substr(name.rfind('-')));
  }
  return names;
}

TEST_CASE(
    "journal damage: a file that is no journal is set aside, and one in a new journal's place is "
    "not taken") {
  TempDirectory directory;
  const std::string state = directory.path("state");
  const Rows rows = make_journal(state);
  const auto kept = [&] { return JournalFile(state, Durability::kProcess).load(); };
  SECTION("a database of another program") {
    std::filesystem::remove(state + "/journal.db");
    sqlite3* theirs = nullptr;
    REQUIRE(sqlite3_open((state + "/journal.db").c_str(), &theirs) == SQLITE_OK);
    CHECK(sqlite3_exec(theirs, "CREATE TABLE t(a)", nullptr, nullptr, nullptr) == SQLITE_OK);
    sqlite3_close(theirs);
    CHECK(kept().rows.empty());
    CHECK(set_aside_in(state).size() == 1);
  }
  SECTION("an empty database beside a log") {
    write_file(state + "/journal.db", "");
    write_file(state + "/journal.db-wal", "a log");
    CHECK(kept().rows.empty());
    REQUIRE(set_aside_in(state).contains("-wal"));
  }
  SECTION("a directory in place of a new one") {
    std::filesystem::create_directory(state + "/journal.db.new");
    CHECK(kept().rows == rows);
  }
  SECTION("somebody's file in place of a new one") {
    write_file(state + "/journal.db.new", std::string(8192, 'x'));
    CHECK(kept().rows == rows);
    CHECK(set_aside_in(state).empty());
  }
}

TEST_CASE("JournalFile: a directory's name that looks like a URI is a name") {
  TempDirectory directory;
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(directory.path());
  JournalFile("file:x", Durability::kProcess).commit({{"a", "1"}});
  CHECK(JournalFile("file:x", Durability::kProcess).load().rows == Rows{{"a", "1"}});
  std::filesystem::current_path(before);
  CHECK(std::filesystem::exists(directory.path("file:x/journal.db")));
}

TEST_CASE("journal damage: any flipped bit of the format's number costs nothing") {
  TempDirectory whole;
  const Rows rows = make_journal(whole.path("state"));
  std::string bytes = read_file(whole.path("state/journal.db"));
  for (std::size_t bit = 60 * 8; bit < 64 * 8; ++bit) {
    TempDirectory copy;
    std::filesystem::copy(whole.path("state"), copy.path("state"),
                          std::filesystem::copy_options::recursive);
    std::string damaged = bytes;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << bit % 8));
    write_file(copy.path("state/journal.db"), damaged);
    INFO("bit " << bit);
    CHECK(JournalFile(copy.path("state"), Durability::kProcess).load().rows == rows);
  }
}

// SQLite takes most of these for no damage: they are other names, other rules for what may be
// written.
TEST_CASE("journal damage: a flipped bit of the tables' definitions") {
  TempDirectory whole;
  const Rows rows = make_journal(whole.path("state"));
  const std::string bytes = read_file(whole.path("state/journal.db"));
  const std::size_t begin = bytes.find("CREATE TABLE"), end = bytes.rfind("NOT NULL)");
  REQUIRE(begin < end);
  REQUIRE(end < 4096);
  const std::size_t rule = bytes.find("CHECK(id = 1)") + 11;
  for (std::size_t at = begin; at < end; at += at + 7 < rule || at > rule ? 7 : 1) {
    TempDirectory copy;
    std::filesystem::copy(whole.path("state"), copy.path("state"),
                          std::filesystem::copy_options::recursive);
    std::string damaged = bytes;
    damaged[at] = static_cast<char>(damaged[at] ^ (1 << at % 5));
    INFO("byte " << at << ", now '" << damaged[at] << "'");
    write_file(copy.path("state/journal.db"), damaged);
    check_usable(copy.path("state"), rows);
  }
}

TEST_CASE("journal damage: a database that is cut off anywhere, or is something else") {
  TempDirectory whole;
  const Rows rows = make_journal(whole.path("state"));
  const std::string bytes = read_file(whole.path("state/journal.db"));
  std::mt19937 random(2);
  for (int i = 0; i < 40; ++i) {
    TempDirectory copy;
    std::filesystem::copy(whole.path("state"), copy.path("state"),
                          std::filesystem::copy_options::recursive);
    const std::string other =
        i == 0 ? "{\"json\": true}" : bytes.substr(0, random() % bytes.size());
    INFO("first " << other.size() << " bytes");
    write_file(copy.path("state/journal.db"), other);
    check_usable(copy.path("state"), rows);
  }
}

std::vector<std::string> set_aside(const std::string& directory) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    const std::string name = entry.path().filename();
    if (name.find("damaged") != std::string::npos) names.push_back(name);
  }
  return names;
}

TEST_CASE("journal damage: twice within a second, each is kept under a name of its own") {
  TempDirectory directory;
  for (int i = 0; i < 3; ++i) {
    write_file(directory.path("journal.db"), "no database " + std::to_string(i));
    JournalFile file(directory.path(), Durability::kProcess);
    CHECK_FALSE(file.load().losses.empty());
  }
  CHECK(set_aside(directory.path()).size() == 3);
}

TEST_CASE(
    "journal damage: a start that ended while it replaced the journal is finished by the next") {
  TempDirectory directory;
  const Rows rows = make_journal(directory.path("state"));
  // The new journal was whole. The damaged one, or only its log, had not gone.
  std::filesystem::rename(directory.path("state/journal.db"),
                          directory.path("state/journal.db.new"));
  const bool has_old = GENERATE(true, false);
  if (has_old) write_file(directory.path("state/journal.db"), "no database at all");
  write_file(directory.path("state/journal.db-wal"), "nor its log");
  JournalFile file(directory.path("state"), Durability::kProcess);
  CHECK(file.load().rows == rows);
  CHECK(set_aside(directory.path("state")).size() == (has_old ? 2 : 1));
  CHECK_FALSE(std::filesystem::exists(directory.path("state/journal.db.new")));
}

TEST_CASE("journal damage: it stays as it is on a full disk until the new one can be written") {
  TempDirectory directory;
  const Rows rows = make_journal(directory.path("state"));
  const std::string file_path = directory.path("state/journal.db");
  std::string damaged = read_file(file_path);
  damaged[damaged.size() / 2] = static_cast<char>(damaged[damaged.size() / 2] ^ 1);
  write_file(file_path, damaged);
  rlimit before{}, none{};
  ::signal(SIGXFSZ, SIG_IGN);
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  none = before;
  none.rlim_cur = 1;
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &none) == 0);
  Rows kept;
  std::unique_ptr<JournalFile> file;
  {
    file = std::make_unique<JournalFile>(directory.path("state"), Durability::kProcess);
    const auto content = file->load();
    ::setrlimit(RLIMIT_FSIZE, &before);
    REQUIRE_FALSE(content.losses.empty());
    CHECK(content.rows.size() >= rows.size() - 60);
    kept = content.rows;
  }
  CHECK(read_file(file_path) == damaged);
  CHECK(set_aside(directory.path("state")).empty());
  file->commit({{"new", "1"}});
  kept["new"] = "1";
  file.reset();
  CHECK(JournalFile(directory.path("state"), Durability::kProcess).load().rows == kept);
  CHECK(set_aside(directory.path("state")).size() == 1);
}

TEST_CASE("journal damage: a log that lost its end is noticed") {
  TempDirectory copy;
  {
    TempDirectory live;
    JournalFile file(live.path("state"), Durability::kProcess);
    for (int n = 1; n <= 10; ++n) file.commit({{"n", std::to_string(n)}});
    // The files after a power failure: the log isn't folded in.
    std::filesystem::copy(live.path("state"), copy.path("state"),
                          std::filesystem::copy_options::recursive);
  }
  const std::string wal = copy.path("state/journal.db-wal");
  const std::string bytes = read_file(wal);
  REQUIRE(bytes.size() > 8000);
  write_file(wal, bytes.substr(0, bytes.size() - 3000));
  if (GENERATE(false, true)) {  // the note of an earlier version has more words
    write_file(copy.path("state/lock"), "4711 10 its-boot written 0\n");
  }
  JournalFile file(copy.path("state"), Durability::kProcess);
  const Content content = file.load();
  CHECK(content.rows.at("n") == "9");
  REQUIRE(content.losses.size() == 1);
  CHECK_THAT(content.losses.front(),
             Catch::Contains("the last 1 commits of the journal are missing"));
}

TEST_CASE("journal damage: a count of commits that never was breaks no later one") {
  const TempDirectory directory;
  JournalFile(directory.path(), Durability::kProcess).commit({{"a", "1"}});
  write_file(directory.path("lock"), "99 9223372036854775807\n");
  {
    JournalFile file(directory.path(), Durability::kProcess);
    CHECK(file.load().losses.empty());
    file.commit({{"b", "2"}});
  }
  CHECK(read_file(directory.path("lock")) == concat(::getpid(), " 2\n"));
}

TEST_CASE("journal damage: a database that was cut to nothing is had from its whole log") {
  const TempDirectory live, copy;
  Rows rows;
  JournalFile file(live.path("state"), Durability::kProcess);
  file.load();
  for (int row = 0; row < 50; ++row) {
    const std::string key = "row" + std::to_string(row);
    file.commit({{key, content_of(row)}});
    rows[key] = content_of(row);
  }
  std::filesystem::copy(live.path("state"), copy.path("state"));  // the files after a kill
  std::optional<testing::ReadOnlyLog> read_only;
  SECTION("cut off") { write_file(copy.path("state/journal.db"), ""); }
  SECTION("removed") { std::filesystem::remove(copy.path("state/journal.db")); }
  SECTION("on a disk that can only be read") {
    write_file(copy.path("state/journal.db"), "");
    read_only.emplace(copy.path("state/journal.db-wal"));
  }
  JournalFile again(copy.path("state"), Durability::kProcess);
  const Content content = again.load();
  CHECK(content.rows == rows);
  CHECK(content.losses.empty());
  const bool is_anew = read_only.has_value();
  read_only.reset();
  again.commit({{"new", "1"}});
  rows["new"] = "1";
  CHECK(testing::live_rows(copy.path("state")) == rows);
  for (const auto& entry : std::filesystem::directory_iterator(copy.path("state"))) {
    const bool is_set_aside = entry.path().string().find(".damaged-") != std::string::npos;
    CHECK((is_anew || !is_set_aside));  // nothing is wrong with it
  }
}

// Commits that were folded into the database before are there.
TEST_CASE("journal damage: a log that is gone is noticed, and the rest is kept") {
  for (const bool has_folded : {false, true}) {
    CAPTURE(has_folded);
    TempDirectory live, copy;
    Rows kept;
    if (has_folded) {
      JournalFile before(live.path("state"), Durability::kProcess);
      before.load();
      before.commit({{"before", "1"}});
      kept["before"] = "1";
    }
    {
      JournalFile file(live.path("state"), Durability::kProcess);
      file.load();
      for (int n = 1; n <= 10; ++n) file.commit({{"n", std::to_string(n)}});
      std::filesystem::copy(live.path("state"), copy.path("state"),
                            std::filesystem::copy_options::recursive);  // the files after a kill
    }
    REQUIRE(std::filesystem::remove(copy.path("state/journal.db-wal")));
    JournalFile file(copy.path("state"), Durability::kProcess);
    const Content content = file.load();
    CHECK(content.rows == kept);
    REQUIRE(content.losses.size() == 1);
    CHECK_THAT(content.losses.front(),
               Catch::Contains("the last 10 commits of the journal are missing"));
    file.commit({{"after", "1"}});
    kept["after"] = "1";
    CHECK(testing::live_rows(copy.path("state")) == kept);
  }
}

}  // namespace
}  // namespace ddprun::journal
