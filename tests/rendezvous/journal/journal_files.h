// SPDX-License-Identifier: Apache-2.0
// Looks at a journal's files, and changes them behind its back.
#pragma once

#include <fcntl.h>
#include <sqlite3.h>

#include <cerrno>
#include <filesystem>
#include <string>

#include "rendezvous/journal/journal_file.h"
#include "tests/support/catch.h"
#include "tests/support/temp_directory.h"

namespace ddprun::journal::testing {

// The rows while a process has the files open. They are read from a copy, because the journal
// itself is locked.
inline Rows live_rows(const std::string& directory) {
  const test::TempDirectory copy;
  for (const char* name : {"/journal.db", "/journal.db-wal"}) {
    if (std::filesystem::exists(directory + name)) {
      std::filesystem::copy_file(directory + name, copy.path() + name);
    }
  }
  return JournalFile(copy.path(), Durability::kProcess).load().rows;
}

inline void run_sql(const std::string& file, const char* sql) {
  sqlite3* database = nullptr;
  REQUIRE(sqlite3_open(file.c_str(), &database) == SQLITE_OK);
  CHECK(sqlite3_exec(database, sql, nullptr, nullptr, nullptr) == SQLITE_OK);
  sqlite3_close(database);
}

// For SQLite a journal's log is on a disk that can only be read. A copy's is not.
class ReadOnlyLog {
 public:
  explicit ReadOnlyLog(const std::string& log) {
    path_ = log;
    disk()->xSetSystemCall(disk(), "open", reinterpret_cast<sqlite3_syscall_ptr>(&open));
  }
  ~ReadOnlyLog() { disk()->xSetSystemCall(disk(), "open", nullptr); }
  ReadOnlyLog(const ReadOnlyLog&) = delete;
  ReadOnlyLog& operator=(const ReadOnlyLog&) = delete;

 private:
  static sqlite3_vfs* disk() { return sqlite3_vfs_find(nullptr); }
  static int open(const char* path, int flags, int mode) {
    if (path != path_) return ::open(path, flags, mode);
    errno = EROFS;
    return -1;
  }
  static inline std::string path_;
};

}  // namespace ddprun::journal::testing
