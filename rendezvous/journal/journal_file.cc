// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/journal/journal_file.h"

#include <fcntl.h>
#include <sqlite3.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <string_view>
#include <system_error>
#include <utility>

#include "common/boot_id.h"
#include "common/crc32.h"
#include "common/error.h"
#include "common/log.h"

namespace ddprun::journal {
namespace {

namespace fs = std::filesystem;

constexpr int kFormat = 1;  // PRAGMA user_version; a newer one is refused
// A newer one has a table of this name: a flipped bit of the number doesn't make one.
constexpr char kFormatTable[] = "format";
struct Table {
  const char* name;
  const char* columns;
};
constexpr Table kTables[] = {
    {"rows", "key TEXT PRIMARY KEY, content TEXT NOT NULL, checksum INTEGER NOT NULL"},
    {"clock",
     "id INTEGER PRIMARY KEY CHECK(id = 1), boot TEXT NOT NULL, monotonic_ns INTEGER NOT NULL, "
     "commits INTEGER NOT NULL"},
};

constexpr char kSyncAlways[] = "PRAGMA synchronous = FULL";
// Syncs where the log is folded into the database only: a loss of power can cost the last commits,
// never the rest.
constexpr char kSyncLog[] = "PRAGMA synchronous = NORMAL";

// What the file system is to blame for is none. A bit in the database's header can look like many
// things: a format that can only be read, a schema that makes no sense.
bool is_damage(int code) {
  switch (code & 0xff) {
    case SQLITE_IOERR:
    case SQLITE_FULL:
    case SQLITE_CANTOPEN:
    case SQLITE_PERM:
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
    case SQLITE_NOMEM:
      return false;
    default:
      return true;
  }
}

// Of open(): the place is right, and the disk not.
bool is_unwritable(int error) {
  return error == EROFS || error == ENOSPC || error == EDQUOT || error == EIO;
}

// The lock's holder, where the lock file and /proc say it.
std::string holder_of(int lock) {
  char text[64] = {};
  if (::pread(lock, text, sizeof text - 1, 0) <= 0) return "another process";
  const long pid = std::strtol(text, nullptr, 10);
  return pid > 0 ? concat("pid ", pid) : "another process";
}

// Its files are for our eyes only; who may write here can put others in their place.
void warn_of_others(const fs::path& directory) {
  struct stat status {};
  if (::stat(directory.c_str(), &status) != 0) return;
  const bool is_theirs = status.st_uid != ::geteuid() && status.st_uid != 0;
  if (!is_theirs && (status.st_mode & (S_IWGRP | S_IWOTH)) == 0) return;
  log_warning(directory.string(), is_theirs ? " is another user's" : " can be written to by others",
              ", who can change what jobs go on with: give ddprund a directory of its own "
              "(chmod 700)");
}

}  // namespace

void JournalFile::CloseDatabase::operator()(sqlite3* database) const { sqlite3_close_v2(database); }

void JournalFile::FinalizeStatement::operator()(sqlite3_stmt* statement) const {
  sqlite3_finalize(statement);
}

JournalFile::JournalFile(const fs::path& directory, Durability durability,
                         Clock::duration place_interval)
    : path_(directory / "journal.db"),
      durability_(durability),
      place_interval_(place_interval),
      pid_(::getpid()),
      boot_(boot_id()) {
  take_directory();
  start();
}

void JournalFile::take_directory() {
  const fs::path directory = path_.parent_path();
  std::error_code error;
  if (fs::create_directories(directory, error)) {
    fs::permissions(directory, fs::perms::owner_all, error);
  } else if (error) {
    throw Error(ErrorCode::kUnavailable,
                concat("can't make ", directory.string(), ": ", error.message()));
  }
  warn_of_others(directory);
  lock(directory);
}

void JournalFile::lock(const fs::path& directory) {
  const fs::path file = directory / kLockName;
  UniqueFd lock(::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!lock) {
    const int error = errno;
    if (is_unwritable(error)) lock.reset(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
    if (!lock) {
      throw Error(ErrorCode::kUnavailable,
                  concat("can't write to ", file.string(), ": ", errno_text(error)));
    }
  }
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    throw Error(ErrorCode::kUnavailable,
                concat(directory.string(), " is in use by ", holder_of(lock.get()),
                       "; give each ddprund a directory of its own"));
  }
  lock_ = std::move(lock);
  note_.reset();
  note_bytes_ = 0;
}

JournalFile::~JournalFile() {
  if (!database_ || !is_loaded_) return;
  try {
    if (const std::string gone = out_of_place(); !gone.empty()) {
      leave_place(gone);
      reopen();
    }
  } catch (const std::exception& error) {
    log_error(error.what());
  }
}

std::int64_t JournalFile::monotonic_ns() { return Clock::now().time_since_epoch().count(); }

std::string JournalFile::text_at(sqlite3_stmt* row, int column) {
  const auto* text = reinterpret_cast<const char*>(sqlite3_column_text(row, column));
  if (text == nullptr) return {};
  return {text, static_cast<std::size_t>(sqlite3_column_bytes(row, column))};
}

// SQLite's pages have no checksum of their own.
std::int64_t JournalFile::checksum(std::string_view key, std::string_view content) {
  const std::uint32_t of_key = crc32(crc32(0, key), std::string_view("\0", 1));
  return crc32(of_key, content);
}

void JournalFile::fail(const std::string& doing) const {
  sqlite3* database = database_.get();
  const int code = database == nullptr ? SQLITE_NOMEM : sqlite3_extended_errcode(database);
  const int system = database == nullptr ? 0 : sqlite3_system_errno(database);
  std::string what = concat("can't ", doing, ' ', path_.string(), ": ",
                            database == nullptr ? "out of memory" : sqlite3_errmsg(database));
  if (system != 0) what += concat(" (", errno_text(system), ")");
  throw Error(is_damage(code) ? ErrorCode::kProtocol : ErrorCode::kSystem, what);
}

void JournalFile::run(const char* sql) {
  if (sqlite3_exec(database_.get(), sql, nullptr, nullptr, nullptr) != SQLITE_OK) fail("write");
}

JournalFile::Statement JournalFile::statement(const char* sql) const {
  sqlite3_stmt* made = nullptr;
  if (sqlite3_prepare_v2(database_.get(), sql, -1, &made, nullptr) != SQLITE_OK) fail("read");
  return Statement(made);
}

void JournalFile::step(Statement& statement) {
  const int code = sqlite3_step(statement.get());
  sqlite3_reset(statement.get());
  if (code != SQLITE_DONE && code != SQLITE_ROW) fail("write");
}

void JournalFile::open(const fs::path& file) {
  log_place_ = {};
  {
    // For our eyes only; SQLite's other files take its mode. Closed before SQLite opens it: a close
    // ends all locks that this process has of the file.
    const UniqueFd made(::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!made) {
      const int error = errno;
      throw Error(is_unwritable(error) ? ErrorCode::kSystem : ErrorCode::kUnavailable,
                  concat("can't write to ", file.string(), ": ", errno_text(error)));
    }
    place_ = place_of(made.get());
  }
  check_log(file);
  sqlite3* opened = nullptr;
  const int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX;
  // Where it begins with "file:" it is a name, and no URI.
  const std::string name = file.is_absolute() ? file.string() : "./" + file.string();
  const int code = sqlite3_open_v2(name.c_str(), &opened, flags, nullptr);
  database_.reset(opened);
  if (code != SQLITE_OK) fail("open");
  run("PRAGMA locking_mode = EXCLUSIVE");
  run("PRAGMA secure_delete = ON");  // SQLite's default where Debian builds it alone
  run("PRAGMA journal_mode = WAL");
  run(durability_ == Durability::kDisk ? kSyncAlways : kSyncLog);
  run("PRAGMA journal_size_limit = 16777216");
  check_format();
  // Only where it is missing: a disk may be full.
  if (number_of("PRAGMA application_id") != static_cast<int>(kApplicationId)) {
    if (number_of("SELECT count(*) FROM sqlite_schema") > 0) {
      throw Error(ErrorCode::kProtocol, concat(file.string(), " is no journal of a ddprund"));
    }
    run(concat("PRAGMA application_id = ", kApplicationId).c_str());
  }
  Statement check = statement("PRAGMA integrity_check(1)");
  if (sqlite3_step(check.get()) != SQLITE_ROW) fail("read");
  if (const std::string found = text_at(check.get(), 0); found != "ok") {
    throw Error(ErrorCode::kProtocol, concat(file.string(), " is damaged: ", one_line(found)));
  }
  check.reset();
  for (const auto& [table, columns] : kTables) {
    run(concat("CREATE TABLE IF NOT EXISTS ", table, '(', columns, ')').c_str());
    check_table(table, concat("CREATE TABLE ", table, '(', columns, ')'));
  }
  if (number_of("PRAGMA user_version") != kFormat) {
    run(concat("PRAGMA user_version = ", kFormat).c_str());
  }
  prepare();
  log_place_ = place_at(file.string() + "-wal");  // SQLite has it open from here on
  place_seen_ = Clock::now();
}

// SQLite removes the log of a database that is empty.
void JournalFile::check_log(const fs::path& file) const {
  std::error_code none;
  if (fs::file_size(file, none) > 0 || none) return;
  if (fs::file_size(file.string() + "-wal", none) == 0 || none) return;
  throw Error(ErrorCode::kProtocol, concat(file.string(), " is empty, and its log is not"));
}

int JournalFile::number_of(const char* query) const {
  Statement value = statement(query);
  if (sqlite3_step(value.get()) != SQLITE_ROW) fail("read");
  return sqlite3_column_int(value.get(), 0);
}

void JournalFile::check_format() const {
  const int format = number_of("PRAGMA user_version");
  if (format <= kFormat) return;
  if (sql_of_table(kFormatTable).empty()) {
    throw Error(ErrorCode::kProtocol,
                concat(path_.string(), " is damaged: its format is no number of one: ", format));
  }
  throw Error(ErrorCode::kUnsupported,
              concat(path_.string(), " is of a newer ddprund (format ", format, ", this one knows ",
                     kFormat, "): install that one, or move the file away"));
}

// Empty: there is none.
std::string JournalFile::sql_of_table(const char* name) const {
  Statement found =
      statement(concat("SELECT sql FROM sqlite_schema WHERE name = '", name, '\'').c_str());
  return sqlite3_step(found.get()) == SQLITE_ROW ? text_at(found.get(), 0) : std::string();
}

// A bit of the schema that is wrong is no damage to SQLite, and may refuse all that is written.
void JournalFile::check_table(const char* name, const std::string& definition) const {
  if (sql_of_table(name) == definition) return;
  throw Error(ErrorCode::kProtocol,
              concat(path_.string(), " is damaged: its table ", name, " is another one"));
}

void JournalFile::close() {
  put_.reset(), erase_.reset(), put_clock_.reset();
  begin_.reset(), commit_.reset(), rollback_.reset();
  database_.reset();
}

void JournalFile::prepare() {
  // In its place, where REPLACE would erase and insert, and write two pages more.
  put_ = statement(
      "INSERT INTO rows(key, content, checksum) VALUES(?1, ?2, ?3) ON CONFLICT(key) DO UPDATE SET "
      "content = excluded.content, checksum = excluded.checksum");
  erase_ = statement("DELETE FROM rows WHERE key = ?1");
  put_clock_ = statement(
      "INSERT INTO clock(id, boot, monotonic_ns, commits) VALUES(1, ?1, ?2, ?3) ON CONFLICT(id) DO "
      "UPDATE SET boot = excluded.boot, monotonic_ns = excluded.monotonic_ns, commits = "
      "excluded.commits");
  begin_ = statement("BEGIN IMMEDIATE");
  commit_ = statement("COMMIT");
  rollback_ = statement("ROLLBACK");
}

JournalFile::Content JournalFile::load() {
  if (!read_) {
    Content content;
    read_clock(database_.get(), content);
    read_rows(database_.get(), content);
    read_ = std::move(content);
    if (!read_->losses.empty()) salvage();
  }
  Content content = *std::exchange(read_, std::nullopt);
  read_note(content);
  is_loaded_ = true;
  note_commit();
  return content;
}

// "PID COMMITS"; what earlier versions wrote after that is ignored.
void JournalFile::read_note(Content& content) {
  char text[64] = {};
  if (::pread(lock_.get(), text, sizeof text - 1, 0) <= 0) return;
  char* rest = nullptr;
  std::strtol(text, &rest, 10);
  const long long expected = std::strtoll(rest, &rest, 10);
  // The log may have been cut off at its end, which SQLite takes for a commit that never was.
  if (expected > commits_) {
    content.losses.push_back(concat("the last ", expected - commits_,
                                    " commits of the journal are missing: the disk lost them"));
  }
  commits_ = std::max<std::int64_t>(commits_, expected);
}

void JournalFile::note_commit() {
  std::string text = std::to_string(pid_);  // for each commit: no streams
  text.append(1, ' ').append(std::to_string(commits_)).append(1, '\n');
  const auto file = [this] { return note_ ? note_.get() : lock_.get(); };
  const auto write = [&] { return ::pwrite(file(), text.data(), text.size(), 0) >= 0; };
  if (!write()) {  // the next one will tell
    if (note_ || errno != EBADF || !open_note() || !write()) return;
  }
  if (std::exchange(note_bytes_, text.size()) == text.size()) return;
  (void)!::ftruncate(file(), static_cast<off_t>(text.size()));
}

// Taken on a disk that could only be read, the lock can't be written through its own descriptor.
bool JournalFile::open_note() {
  const fs::path file = path_.parent_path() / kLockName;
  UniqueFd note(::open(file.c_str(), O_WRONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!note || place_of(note.get()) != place_of(lock_.get())) return false;
  note_ = std::move(note);
  return true;
}

void JournalFile::commit(const Batch& batch) {
  take_place();
  write(batch);
  note_commit();
}

void JournalFile::write(const Batch& batch) {
  try {
    step(begin_);
    change(batch);
    put_clock();
    step(commit_);
  } catch (...) {
    roll_back();
    throw;
  }
  ++commits_;
  if (std::ranges::any_of(batch,
                          [](const auto& row) { return !row.content && is_wiped(row.key); })) {
    wipe();
  }
}

// What was erased is in the log still. Where it can't be folded now, as on a full disk, it is
// later.
void JournalFile::wipe() {
  sqlite3_wal_checkpoint_v2(database_.get(), nullptr, SQLITE_CHECKPOINT_TRUNCATE, nullptr, nullptr);
}

void JournalFile::change(const Batch& rows) {
  for (const RowChange& row : rows) {
    Statement& change = row.content ? put_ : erase_;
    sqlite3_bind_text(change.get(), 1, row.key.data(), static_cast<int>(row.key.size()),
                      SQLITE_STATIC);
    if (row.content) {
      sqlite3_bind_text(change.get(), 2, row.content->data(), static_cast<int>(row.content->size()),
                        SQLITE_STATIC);
      sqlite3_bind_int64(change.get(), 3, checksum(row.key, *row.content));
    }
    step(change);
  }
}

void JournalFile::put_clock() {
  sqlite3_bind_text(put_clock_.get(), 1, boot_.data(), static_cast<int>(boot_.size()),
                    SQLITE_STATIC);
  sqlite3_bind_int64(put_clock_.get(), 2, monotonic_ns());
  sqlite3_bind_int64(put_clock_.get(), 3, commits_ + 1);
  step(put_clock_);
}

void JournalFile::roll_back() {
  if (!database_ || sqlite3_get_autocommit(database_.get()) != 0) return;
  sqlite3_step(rollback_.get());
  sqlite3_reset(rollback_.get());
}

}  // namespace ddprun::journal
