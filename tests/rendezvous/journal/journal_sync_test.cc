// SPDX-License-Identifier: Apache-2.0
// The syncs to the disk at each commit.
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <future>
#include <string>

#include "rendezvous/journal/journal.h"
#include "rendezvous/journal/journal_file.h"
#include "tests/rendezvous/journal/posts.h"
#include "tests/support/catch.h"
#include "tests/support/temp_directory.h"

namespace {
std::atomic<int> num_syncs = 0;  // of this process
}  // namespace

// Replaces libc's function, also for SQLite.
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

TEST_CASE("JournalFile: each commit is synced with --durability=disk, none with process") {
  TempDirectory directory;
  JournalFile file(directory.path("state"), Durability::kProcess);
  file.load();
  syncs_of(file, {{"a", "1"}});  // the first commit begins the log
  CHECK(syncs_of(file, {{"a", "2"}}) == 0);

  JournalFile synced(directory.path("synced"), Durability::kDisk);
  synced.load();
  CHECK(syncs_of(synced, {{"a", "1"}}) > 0);
  CHECK(syncs_of(synced, {{"a", "2"}}) > 0);
}

// A file that counts the syncs of each commit. Its first commit waits until it may go on.
struct CountedFile : BatchWriter {
  struct Commits {
    std::promise<void> begun, may_end;
    std::vector<int> syncs;  // of each commit
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

}  // namespace
}  // namespace ddprun::journal
