// SPDX-License-Identifier: Apache-2.0
// What is synced to the disk at each commit, and what is known of it after the machine's end.
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <future>
#include <iterator>
#include <sstream>
#include <string>

#include "rendezvous/journal/journal.h"
#include "rendezvous/journal/journal_file.h"
#include "tests/rendezvous/journal/posts.h"
#include "tests/support/catch.h"
#include "tests/support/temp_directory.h"

namespace {
std::atomic<int> num_syncs = 0;  // of this process
}  // namespace

// In place of libc's, also for SQLite.
extern "C" int fsync(int fd) {
  ++num_syncs;
  return static_cast<int>(::syscall(SYS_fsync, fd));
}
extern "C" int fdatasync(int fd) {
  ++num_syncs;
  return static_cast<int>(::syscall(SYS_fdatasync, fd));
}

namespace ddprun::journal {
namespace {

using test::TempDirectory;

int syncs_of(JournalFile& file, const Batch& batch) {
  const int before = num_syncs;
  file.commit(batch);
  return num_syncs - before;
}

TEST_CASE(
    "JournalFile: a row that says whose it is is synced with its commit, others by --durability") {
  TempDirectory directory;
  JournalFile file(directory.path("state"), Durability::kProcess);
  file.load();
  syncs_of(file, {{"a", "1"}});  // the first one begins the log
  CHECK(syncs_of(file, {{"a", "2"}}) == 0);
  CHECK(syncs_of(file, {{"leader/before", "1"}}) == 0);
  CHECK(syncs_of(file, {{"a", "3"}, {"leader/term", "1"}}) > 0);
  CHECK(syncs_of(file, {{"a", "4"}}) == 0);
  CHECK(syncs_of(file, {{"leader/standby", std::nullopt}}) > 0);
  const int before = num_syncs;
  file.begin_anew();
  file.add({{"a", "5"}, {"leader/copy", "1"}});
  file.finish({});
  CHECK(num_syncs > before);
  CHECK(syncs_of(file, {{"a", "6"}}) == 0);

  JournalFile synced(directory.path("synced"), Durability::kDisk);
  synced.load();
  CHECK(syncs_of(synced, {{"a", "1"}}) > 0);
  CHECK(syncs_of(synced, {{"leader/term", "1"}}) > 0);
  CHECK(syncs_of(synced, {{"a", "2"}}) > 0);
}

// The file, and what each commit to it was. The first one waits until it may go on.
struct CountedFile : BatchWriter {
  struct Commits {
    std::promise<void> begun, may_end;
    std::vector<int> syncs;  // of each
  };
  CountedFile(const std::filesystem::path& directory, std::shared_ptr<Commits> where)
      : file(directory, Durability::kDisk), commits(std::move(where)) {
    file.load();
  }
  void commit(const Batch& batch) override {
    if (commits->syncs.empty()) {
      commits->begun.set_value();
      commits->may_end.get_future().wait();
    }
    commits->syncs.push_back(syncs_of(file, batch));
  }
  std::string name() const override { return file.name(); }

  JournalFile file;
  const std::shared_ptr<Commits> commits;
};

TEST_CASE("Journal: all that wait are one transaction, with the syncs of one") {
  TempDirectory directory;
  test::Posts posts;
  const auto commits = std::make_shared<CountedFile::Commits>();
  constexpr int kNumWaiting = 100;
  JournalOptions patient;
  patient.commit_limit = std::chrono::minutes(1);
  {
    Journal journal(std::make_unique<CountedFile>(directory.path("state"), commits), posts.post(),
                    patient);
    int num_done = 0;
    journal.commit({{"first", "1"}}, [&] { ++num_done; });
    commits->begun.get_future().wait();
    for (int i = 0; i < kNumWaiting; ++i) {
      journal.commit({{"row " + std::to_string(i), "1"}}, [&] { ++num_done; });
    }
    commits->may_end.set_value();
    posts.run_until([&] { return num_done == 1 + kNumWaiting; });
    journal.commit({{"last", "1"}}, [&] { ++num_done; });
    posts.run_until([&] { return num_done == 2 + kNumWaiting; });
  }
  REQUIRE(commits->syncs.size() == 3);
  CHECK(commits->syncs[1] > 0);
  CHECK(commits->syncs[1] == commits->syncs[2]);
  CHECK(JournalFile(directory.path("state"), Durability::kDisk).load().rows.size() ==
        2 + kNumWaiting);
}

// A journal whose process was killed, and its lock file as if that had been in another boot.
struct Killed {
  explicit Killed(Durability durability) {
    {
      JournalFile file(directory.path("first"), durability);
      file.load();
      file.commit({{"a", "1"}});
      for (const char* name : {"journal.db", "journal.db-wal", "lock"}) {
        std::filesystem::create_directories(directory.path("state"));
        std::filesystem::copy_file(directory.path("first") + "/" + name,
                                   directory.path("state") + "/" + name);
      }
    }
    note = read(directory.path("state/lock"));
  }

  static std::string read(const std::string& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void set_note(const std::string& text) const {
    std::ofstream(directory.path("state/lock"), std::ios::trunc) << text;
  }
  // PID COMMITS BOOT HOW SYNCED_COMMITS
  void reboot() const {
    std::istringstream words(note);
    std::string pid, commits, boot, how, synced;
    words >> pid >> commits >> boot >> how >> synced;
    REQUIRE(words);
    set_note(pid + ' ' + commits + " another-boot " + how + ' ' + synced + '\n');
  }
  bool may_lack_end() const {
    JournalFile file(directory.path("state"), Durability::kProcess);
    const bool may = file.load().may_lack_end;
    CHECK(file.content().may_lack_end == may);
    return may;
  }

  TempDirectory directory;
  std::string note;
};

TEST_CASE("JournalFile: after the machine's end what was not synced may lack its end") {
  Killed killed(Durability::kProcess);
  SECTION("the machine ran on") { CHECK_FALSE(killed.may_lack_end()); }
  SECTION("it did not; who opens it again is told until it says anew whose rows they are") {
    killed.reboot();
    CHECK(killed.may_lack_end());
    CHECK(killed.may_lack_end());
    {
      JournalFile file(killed.directory.path("state"), Durability::kProcess);
      file.load();
      file.commit({{"a", "2"}});
      CHECK(file.content().may_lack_end);
      file.commit({{"leader/term", "1"}});
      CHECK_FALSE(file.content().may_lack_end);
    }
    CHECK_FALSE(killed.may_lack_end());
  }
  SECTION("it lost the note, too") {
    killed.set_note("");
    CHECK(killed.may_lack_end());
  }
  SECTION("an older ddprund, of no pair, wrote the note") {
    killed.set_note("1 1\n");
    CHECK_FALSE(killed.may_lack_end());
  }
}

TEST_CASE(
    "JournalFile: what was synced, or closed as a whole, lacks nothing after a machine's end") {
  Killed synced(Durability::kDisk);
  synced.reboot();
  CHECK_FALSE(synced.may_lack_end());

  Killed closed(Durability::kProcess);
  {
    JournalFile file(closed.directory.path("state"), Durability::kProcess);
    file.load();
    file.commit({{"a", "2"}});
  }
  closed.note = Killed::read(closed.directory.path("state/lock"));
  closed.reboot();
  CHECK_FALSE(closed.may_lack_end());
}

}  // namespace
}  // namespace ddprun::journal
