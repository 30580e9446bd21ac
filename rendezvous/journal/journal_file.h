// SPDX-License-Identifier: Apache-2.0
// The journal's rows in one SQLite database (docs/durability.md). One thread at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/unique_fd.h"
#include "rendezvous/journal/journal.h"
#include "rendezvous/journal/row.h"

struct sqlite3;
struct sqlite3_stmt;

namespace ddprun::journal {

enum class Durability {
  kProcess,  // what was committed outlives this process' end, however it comes; row.h has more
  kDisk,     // and the machine's: fsync at each commit
};

class JournalFile : public BatchWriter {
 public:
  // Makes `directory` (mode 0700) and the database in it (0600) where they are missing. Throws
  // Error(kUnavailable): it can't be made or entered, or another process, named, has it.
  // Error(kUnsupported): a newer ddprund wrote it. Error(kInvalidArgument): it is of a pair
  // (is_of_pair()), or others could change it, or something there is no regular file. All stays as
  // it is. One that is damaged is set aside under a name that load() tells, once what can be read
  // of it is in a new one. One that is there on a disk that is full or read-only, or that another
  // program reads, is read all the same: see trouble(). A commit `place_interval` after the last
  // look, and the end, look whether the files are where they were opened.
  JournalFile(const std::filesystem::path& directory, Durability durability,
              Clock::duration place_interval = kPlaceInterval);
  ~JournalFile() override;
  JournalFile(const JournalFile&) = delete;
  JournalFile& operator=(const JournalFile&) = delete;

  // To be called once, before the first commit(). Throws Error(kInvalidArgument), as the
  // constructor.
  Content load();

  // All of it, or nothing. Throws Error ("disk is full", …): the same batch may be tried again,
  // with more or without. If the files were removed, moved, replaced or cut off since, or weren't
  // writable when opened, it first makes new ones with all rows. The log says so.
  void commit(const Batch& batch) override;

  std::string name() const override { return path_.string(); }
  // Why it can't be written yet; commit() tries to open it again.
  std::string trouble() const override { return trouble_; }

 private:
  struct CloseDatabase {
    void operator()(sqlite3* database) const;
  };
  struct FinalizeStatement {
    void operator()(sqlite3_stmt* statement) const;
  };
  using Statement = std::unique_ptr<sqlite3_stmt, FinalizeStatement>;

  static constexpr char kLockName[] = "lock";
  static constexpr std::uint32_t kApplicationId = 0x64647072;  // "ddpr"
  // Looking costs a fifth of a small commit. A kill right after the removal loses the rows anyway.
  static constexpr std::chrono::milliseconds kPlaceInterval{10};

  // Which file it is, whatever its name.
  struct Place {
    std::uint64_t device = 0, inode = 0;
    bool operator==(const Place&) const = default;
  };

  void take_directory();
  void lock(const std::filesystem::path& directory);
  static Place place_of(int fd);
  static Place place_at(const std::filesystem::path& path);
  static std::string change_of(const std::filesystem::path& path, const Place& place,
                               std::uint64_t bytes = 0);
  static bool is_at(const std::filesystem::path& path, const Place& place);
  std::string out_of_place() const;
  void take_place();
  void leave_place(const std::string& gone);
  void leave_log();
  void start();
  static bool is_journal(const std::filesystem::path& file);
  static int wrote_frames(void* self, sqlite3* database, const char* name, int in_log);
  bool keep_log(const std::filesystem::path& file, int database) const;
  void open(const std::filesystem::path& file);
  void close();
  void check_format() const;
  std::string sql_of_table(const char* name) const;
  void check_table(const char* name, const std::string& definition) const;
  int number_of(const char* query) const;
  void prepare();
  void write(const Batch& batch);
  void change(const Batch& rows);
  void put_clock();
  void roll_back();
  void salvage();
  void read_copy(const std::string& why);
  Content content_of_copy(const UniqueFd& database, const UniqueFd& log, const std::string& why);
  Content content_of(const std::filesystem::path& copy);
  void reopen();
  void check_what_was_copied();
  void make_anew(const Rows& rows);
  std::filesystem::path set_aside();
  [[noreturn]] void refuse_pair() const;
  void read_rows(Content& content) const;
  void read_clock(Content& content);
  void note_commit();
  bool open_note();
  void read_note(Content& content);
  void run(const char* sql);
  Statement statement(const char* sql) const;
  void step(Statement& statement);
  [[noreturn]] void fail(const std::string& doing) const;

  const std::filesystem::path path_;
  const Durability durability_;
  const Clock::duration place_interval_;
  // Has our pid, and commits_: so a log that lost its end is noticed.
  UniqueFd lock_;
  UniqueFd note_;               // lock_'s file, where lock_ itself can only be read
  std::size_t note_bytes_ = 0;  // in it; 0: not known
  const int pid_;
  const std::string boot_;
  std::int64_t commits_ = 0;
  bool is_loaded_ = false;
  std::unique_ptr<sqlite3, CloseDatabase> database_;
  Clock::time_point place_seen_{};  // when they were last found to be there
  Place place_, log_place_;  // of database_, or of what was read of it; the log's: none, not known
  std::uint64_t page_bytes_ = 0, num_frames_ = 0;  // of database_; in its log at least
  Statement put_, erase_, put_clock_, begin_, commit_, rollback_;
  std::optional<Content> read_;  // for load(): it was read before
  std::optional<Rows> owed_;     // to be written to a new file: this one is damaged, or gone
  // The rows of files that can't be opened yet. The files are held: no other one gets their inodes.
  std::optional<Rows> copied_;
  std::vector<UniqueFd> held_;
  std::string trouble_;
  std::filesystem::path aside_;  // where a damaged one is kept
};

}  // namespace ddprun::journal
