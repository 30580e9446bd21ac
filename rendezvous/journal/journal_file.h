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
  kProcess,  // commits survive any end of this process
  kDisk,     // also the machine's end: fsync at each commit
};

class JournalFile : public BatchWriter {
 public:
  // Makes `directory` (mode 0700) and the database in it (0600) if they are missing. Throws these
  // errors, and then leaves all files as they are. Error(kUnavailable): it can't be made or
  // entered, or another process, which is named, has it. Error(kUnsupported): a newer ddprund wrote
  // it. Error(kInvalidArgument): it is a pair's (is_of_pair()), or others could change it, or a
  // file isn't regular. A damaged database is renamed once a new one has all that can be read of
  // it; load() tells the name. A database on a full or read-only disk, or one that another program
  // reads, is still read: see trouble(). The destructor, and a commit `place_interval` after the
  // last check, check that the files are where they were opened.
  JournalFile(const std::filesystem::path& directory, Durability durability,
              Clock::duration place_interval = kPlaceInterval);
  ~JournalFile() override;

  // Returns the rows. Called once, before the first commit(). Throws Error(kInvalidArgument) as the
  // constructor does.
  Content load();

  // Commits the whole batch or nothing. Throws Error ("disk is full", …); the same batch may be
  // tried again, also with more rows. If the files were removed, moved, replaced or cut off
  // meanwhile, it first makes new ones with all rows, and logs that. It does so, too, if the files
  // weren't writable when they were opened.
  void commit(const Batch& batch) override;

  std::string name() const override { return path_.string(); }
  // Returns why it can't be written yet; commit() tries to open it again.
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
  // The check costs a fifth of a small commit. A kill right after files are removed loses their
  // rows anyway.
  static constexpr std::chrono::milliseconds kPlaceInterval{10};

  // Identifies a file, whatever its name.
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
  // The lock file. It has our pid, and commits_, so that a log without its end is noticed.
  UniqueFd lock_;
  UniqueFd note_;               // lock_'s file again if lock_ is read-only
  std::size_t note_bytes_ = 0;  // the note's length; 0: not known
  const int pid_;
  const std::string boot_;
  std::int64_t commits_ = 0;
  bool is_loaded_ = false;
  std::unique_ptr<sqlite3, CloseDatabase> database_;
  Clock::time_point place_seen_{};  // when the files were last checked
  Place place_, log_place_;  // of database_, or of files that were read; no log_place_: not known
  std::uint64_t page_bytes_ = 0, num_frames_ = 0;  // of database_; least number in its log
  Statement put_, erase_, put_clock_, begin_, commit_, rollback_;
  std::optional<Content> read_;  // set: already read, for load()
  std::optional<Rows> owed_;     // for a new file, since this one is damaged or gone
  // The rows of files that can't be opened yet. held_ keeps the files open, so that no other file
  // gets their inodes.
  std::optional<Rows> copied_;
  std::vector<UniqueFd> held_;
  std::string trouble_;
  std::filesystem::path aside_;  // the new name of a damaged database
};

}  // namespace ddprun::journal
