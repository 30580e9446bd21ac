// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/journal/journal_file.h"

#include <fcntl.h>
#include <sqlite3.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <ctime>
#include <iterator>
#include <limits>
#include <system_error>
#include <utility>

#include "common/crc32.h"
#include "common/log.h"
#include "common/process_facts.h"
#include "common/regular_file.h"
#include "common/throw_error.h"
#include "common/wall_time.h"
#include "rendezvous/journal/guarded_files.h"

namespace ddprun::journal {

namespace fs = std::filesystem;

namespace {

constexpr int kFormat = 1;  // PRAGMA user_version; a newer one is refused
// A newer format has a table of this name. So a flipped bit in the number is told apart from a
// newer format.
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

constexpr char kGone[] = " was removed, moved or replaced";

// A larger number can't be a count of commits.
constexpr std::int64_t kMostCommits = std::numeric_limits<std::int64_t>::max() / 2;

constexpr char kSyncAlways[] = "PRAGMA synchronous = FULL";
// Syncs only when the log is folded into the database. A power loss can cost only the last commits.
constexpr char kSyncLog[] = "PRAGMA synchronous = NORMAL";

// Errors of files, locks and memory aren't damage. All others are: one wrong bit in the database's
// header can cause many errors, e.g. a read-only format or an invalid schema.
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

// SQLite's files beside a database: the log, its index, the rollback journal. Each can be missing.
constexpr const char* kBeside[] = {"-wal", "-shm", "-journal"};
constexpr const char* kParts[] = {"-wal", "-shm", "-journal", ""};  // the database last

fs::path with(const fs::path& path, const char* suffix) { return path.string() + suffix; }

// A temporary directory for a copy.
class CopyDirectory {
 public:
  explicit CopyDirectory(const fs::path& parent) {
    std::string path = parent / "ddprund-XXXXXX";
    if (::mkdtemp(path.data()) == nullptr) throw_system_error("mkdtemp " + path, errno);
    path_ = path;
  }
  ~CopyDirectory() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  CopyDirectory(const CopyDirectory&) = delete;
  CopyDirectory& operator=(const CopyDirectory&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

// Opens the file to read. Returns no descriptor if there is no such file.
UniqueFd open_to_read(const fs::path& file) {
  UniqueFd fd = open_file(file, O_RDONLY);
  if (fd || errno == ENOENT) return fd;
  throw_error(ErrorCode::kUnavailable, "can't read ", file.string(), ": ", errno_text(errno));
}

bool has_content(const UniqueFd& file) {
  struct stat info {};
  return file && ::fstat(file.get(), &info) == 0 && info.st_size > 0;
}

void copy_opened(const UniqueFd& from, const fs::path& to) {
  if (!from) return;
  std::error_code error;
  fs::copy_file(concat("/proc/self/fd/", from.get()), to, error);
  if (!error) return;
  throw_error(ErrorCode::kSystem, "can't write ", to.string(), ": ", error.message());
}

std::int64_t monotonic_ns() { return Clock::now().time_since_epoch().count(); }

std::string text_at(sqlite3_stmt* row, int column) {
  const auto* text = reinterpret_cast<const char*>(sqlite3_column_text(row, column));
  if (text == nullptr) return {};
  return {text, static_cast<std::size_t>(sqlite3_column_bytes(row, column))};
}

// Rows have a checksum because SQLite's pages have none.
std::int64_t checksum(std::string_view key, std::string_view content) {
  const std::uint32_t of_key = crc32(crc32(0, key), std::string_view("\0", 1));
  return crc32(of_key, content);
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
    throw_error(ErrorCode::kUnavailable, "can't make ", directory.string(), ": ", error.message());
  }
  const UniqueFd opened(::open(directory.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  struct stat info {};
  if (!opened || ::fstat(opened.get(), &info) != 0) {
    throw_error(ErrorCode::kUnavailable, "can't enter ", directory.string(), ": ",
                errno_text(errno));
  }
  refuse_others(directory, info);
  lock(directory);
}

void JournalFile::lock(const fs::path& directory) {
  const fs::path file = directory / kLockName;
  UniqueFd lock = open_file(file, O_RDWR | O_CREAT);
  if (!lock) {
    const int error = errno;
    if (is_unwritable(error)) lock = open_file(file, O_RDONLY);
    if (!lock) {
      throw_error(ErrorCode::kUnavailable, "can't write to ", file.string(), ": ",
                  errno_text(error));
    }
  }
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    refuse_second(directory, holder_of(lock.get()));
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

void JournalFile::fail(const std::string& doing) const {
  sqlite3* database = database_.get();
  const int code = database == nullptr ? SQLITE_NOMEM : sqlite3_extended_errcode(database);
  refuse_if_taken(path_, code);
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
  page_bytes_ = num_frames_ = 0;
  bool is_from_log = false;
  {
    // SQLite's other files get this file's mode. It is closed before SQLite opens it, since a close
    // ends all locks.
    const UniqueFd made = open_file(file, O_RDWR | O_CREAT);
    if (!made) fail_to_open(file, errno);
    place_ = place_of(made.get());
    for (const char* suffix : kBeside) {
      const fs::path beside = with(file, suffix);
      if (!open_file(beside, O_RDWR) && errno != ENOENT) fail_to_open(beside, errno);
    }
    is_from_log = keep_log(file, made.get());
  }
  sqlite3* opened = nullptr;
  const int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX;
  // SQLite would take a name that begins with "file:" for a URI.
  const std::string name = file.is_absolute() ? file.string() : "./" + file.string();
  const int code = sqlite3_open_v2(name.c_str(), &opened, flags, nullptr);
  database_.reset(opened);
  if (code != SQLITE_OK) fail("open");
  run("PRAGMA locking_mode = EXCLUSIVE");
  run("PRAGMA secure_delete = ON");  // the default only in Debian's SQLite
  run("PRAGMA journal_mode = WAL");
  run(durability_ == Durability::kDisk ? kSyncAlways : kSyncLog);
  run("PRAGMA journal_size_limit = 16777216");
  sqlite3_wal_hook(database_.get(), wrote_frames, this);
  check_format();
  // The id is written only if it is missing, since the disk may be full.
  if (number_of("PRAGMA application_id") != static_cast<int>(kApplicationId)) {
    if (number_of("SELECT count(*) FROM sqlite_schema") > 0) {
      throw_error(ErrorCode::kProtocol, file.string(), " is no journal of a ddprund");
    }
    run(concat("PRAGMA application_id = ", kApplicationId).c_str());
  }
  Statement check = statement("PRAGMA integrity_check(1)");
  if (sqlite3_step(check.get()) != SQLITE_ROW) fail("read");
  if (const std::string found = text_at(check.get(), 0); found != "ok") {
    throw_error(ErrorCode::kProtocol, file.string(), " is damaged: ", one_line(found));
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
  if (is_from_log) {  // else the database would look cut off
    sqlite3_wal_checkpoint_v2(database_.get(), nullptr, SQLITE_CHECKPOINT_TRUNCATE, nullptr,
                              nullptr);
  }
  page_bytes_ = static_cast<std::uint64_t>(number_of("PRAGMA page_size"));
  log_place_ = place_at(file.string() + "-wal");  // SQLite has the log open from here on
  place_seen_ = Clock::now();
}

// Replaces SQLite's own hook, which folds the log in after the same number of frames.
int JournalFile::wrote_frames(void* self, sqlite3* database, const char* name, int in_log) {
  constexpr int kMostFrames = 1000;
  static_cast<JournalFile*>(self)->num_frames_ = static_cast<std::uint64_t>(in_log);
  if (in_log >= kMostFrames) {
    sqlite3_wal_checkpoint_v2(database, name, SQLITE_CHECKPOINT_PASSIVE, nullptr, nullptr);
  }
  return SQLITE_OK;
}

// SQLite removes the log of a database of 0 or 1 bytes, although the log may have all pages. So
// this writes some bytes into the database: then SQLite reads the log. Returns whether it did.
bool JournalFile::keep_log(const fs::path& file, int database) const {
  constexpr std::string_view kAnything = "empty";
  std::error_code none;
  if (fs::file_size(file, none) > 1 || none) return false;
  if (fs::file_size(with(file, "-wal"), none) == 0 || none) return false;
  if (::pwrite(database, kAnything.data(), kAnything.size(), 0) <= 1) {
    throw_system_error("can't write to " + file.string(), errno);
  }
  log_warning(path_.string(), " is empty, and its log is not: what the log has is gone on with");
  return true;
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
    throw_error(ErrorCode::kProtocol, path_.string(),
                " is damaged: its format is no number of one: ", format);
  }
  throw_error(ErrorCode::kUnsupported, path_.string(), " is of a newer ddprund (format ", format,
              ", this one knows ", kFormat, "): install that one, or move the file away");
}

// Returns the table's definition; empty: there is no such table.
std::string JournalFile::sql_of_table(const char* name) const {
  Statement found =
      statement(concat("SELECT sql FROM sqlite_schema WHERE name = '", name, '\'').c_str());
  return sqlite3_step(found.get()) == SQLITE_ROW ? text_at(found.get(), 0) : std::string();
}

// SQLite doesn't notice a wrong bit in the schema, which may make every write fail.
void JournalFile::check_table(const char* name, const std::string& definition) const {
  if (sql_of_table(name) == definition) return;
  throw_error(ErrorCode::kProtocol, path_.string(), " is damaged: its table ", name,
              " is another one");
}

void JournalFile::close() {
  put_.reset(), erase_.reset(), put_clock_.reset();
  begin_.reset(), commit_.reset(), rollback_.reset();
  database_.reset();
}

void JournalFile::prepare() {
  // Updates the row in its place: REPLACE would erase and insert, and write two more pages.
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

Content JournalFile::load() {
  if (!read_) {
    Content content;
    read_clock(content);
    read_rows(content);
    read_ = std::move(content);
    if (!read_->losses.empty()) salvage();
  }
  Content content = *std::exchange(read_, std::nullopt);
  read_note(content);
  // If the log comes back later, it has other rows than these, so a new file must get these.
  if (copied_ && !content.losses.empty()) owed_ = content.rows;
  is_loaded_ = true;
  note_commit();
  return content;
}

// Reads the note, "PID COMMITS"; earlier versions' text after that is ignored.
void JournalFile::read_note(Content& content) {
  char text[64] = {};
  if (::pread(lock_.get(), text, sizeof text - 1, 0) <= 0) return;
  char* rest = nullptr;
  std::strtol(text, &rest, 10);
  const long long expected = std::strtoll(rest, &rest, 10);
  // SQLite doesn't notice that a log has lost its end: to it the lost commits never happened.
  if (expected > kMostCommits) return;
  if (expected > commits_) {
    content.losses.push_back(concat("the last ", expected - commits_,
                                    " commits of the journal are missing: the disk lost them"));
  }
  commits_ = std::max<std::int64_t>(commits_, expected);
}

void JournalFile::note_commit() {
  std::string text = std::to_string(pid_);  // no slow streams, since this is done at each commit
  text.append(1, ' ').append(std::to_string(commits_)).append(1, '\n');
  const auto file = [this] { return note_ ? note_.get() : lock_.get(); };
  const auto write = [&] { return ::pwrite(file(), text.data(), text.size(), 0) >= 0; };
  if (!write()) {  // the next commit's note will do
    if (note_ || errno != EBADF || !open_note() || !write()) return;
  }
  if (std::exchange(note_bytes_, text.size()) == text.size()) return;
  (void)!::ftruncate(file(), static_cast<off_t>(text.size()));
}

// Opens the lock file again to write: a lock that was taken on a read-only disk has a read-only
// descriptor.
bool JournalFile::open_note() {
  const fs::path file = path_.parent_path() / kLockName;
  UniqueFd note = open_file(file, O_WRONLY);
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
    // The log still has the erased row, so it is folded in and truncated. If that fails now (a full
    // disk), it is done later.
    sqlite3_wal_checkpoint_v2(database_.get(), nullptr, SQLITE_CHECKPOINT_TRUNCATE, nullptr,
                              nullptr);
    num_frames_ = 0;
  }
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

// ---- opening a journal: a good one, a damaged one, or one on a disk that can't be written ----

// Returns whether the file is a journal, judged by its first bytes.
bool JournalFile::is_journal(const fs::path& file) {
  constexpr std::string_view kMagic("SQLite format 3\0", 16);
  constexpr std::size_t kIdAt = 68;
  char head[kIdAt + 4] = {};
  const UniqueFd fd(::open(file.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!fd || ::pread(fd.get(), head, sizeof head, 0) != sizeof head) return false;
  std::uint32_t id = 0;  // in big-endian order
  for (std::size_t i = kIdAt; i < sizeof head; ++i) {
    id = id << 8 | static_cast<unsigned char>(head[i]);
  }
  return std::string_view(head, kMagic.size()) == kMagic && id == kApplicationId;
}

void JournalFile::start() {
  try {
    std::error_code error;
    // An earlier start was interrupted after the new journal was complete.
    const fs::path made = with(path_, ".new");
    if (fs::exists(made, error) && !is_journal(made)) {
      log_warning(made.string(), " is no journal, and not looked at");
    } else if (open_file(made, O_RDONLY)) {
      const fs::path aside = set_aside();
      log_warning("the journal was damaged; it is kept as ", aside.string());
    }
    open(path_);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kProtocol) return salvage();
    if (error.code() != ErrorCode::kSystem) throw;
    read_copy(error.what());
  }
}

// Reads the table from both ends, as far as possible, and makes a new database with these rows.
void JournalFile::salvage() {
  Content kept;
  if (database_) {
    read_clock(kept);
    read_rows(kept);
    std::error_code none;
    if (fs::file_size(with(path_, "-wal"), none) > 0 && !none) {
      // The log is set aside with the database, not folded into it.
      sqlite3_db_config(database_.get(), SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, nullptr);
    }
  }
  close();
  std::string said =
      concat("the journal was damaged, and ", kept.rows.size(), " rows could be read of it; ");
  owed_ = kept.rows;
  try {
    make_anew(*owed_);
    said += concat("it is kept as ", aside_.string());
    owed_.reset();
  } catch (const Error& error) {
    close();
    trouble_ = error.what();
    said += concat("it stays ", path_.string(), " until a new one can be written");
  }
  kept.losses.insert(kept.losses.begin(), std::move(said));
  read_ = std::move(kept);
}

// Reads the rows from a copy. The file itself is written when that is possible again.
void JournalFile::read_copy(const std::string& why) {
  close();
  trouble_ = why;
  const UniqueFd database = open_to_read(path_), log = open_to_read(with(path_, "-wal"));
  Content content;
  if (has_content(database) || has_content(log)) content = content_of_copy(database, log, why);
  if (!content.losses.empty()) owed_ = content.rows;
  place_ = place_of(database.get());
  log_place_ = place_of(log.get());
  copied_ = content.rows;
  held_.clear();
  for (const char* part : {"", "-wal"}) {
    held_.emplace_back(::open(with(path_, part).c_str(), O_PATH | O_CLOEXEC));
  }
  read_ = std::move(content);
}

// Copies the files to /dev/shm or, if that is too small, to the temporary directory.
Content JournalFile::content_of_copy(const UniqueFd& database, const UniqueFd& log,
                                     const std::string& why) {
  std::string trouble;
  std::error_code none;
  for (const fs::path& parent : {fs::path("/dev/shm"), fs::temp_directory_path(none)}) {
    try {
      const CopyDirectory directory(parent);
      const fs::path copy = directory.path() / path_.filename();
      copy_opened(log, with(copy, "-wal"));
      copy_opened(database, copy);
      return content_of(copy);
    } catch (const Error& error) {
      close();
      if (error.code() != ErrorCode::kSystem) throw;
      trouble = error.what();
    }
  }
  throw_error(ErrorCode::kUnavailable, why, "; and ", trouble);
}

Content JournalFile::content_of(const fs::path& copy) {
  Content content;
  try {
    open(copy);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kProtocol) throw;
    content.losses.emplace_back("the journal is damaged");
  }
  if (database_) read_clock(content);
  if (database_) read_rows(content);
  close();
  return content;
}

JournalFile::Place JournalFile::place_of(int fd) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) return {};
  return {status.st_dev, status.st_ino};
}

// Returns the place of a regular file; anything else has none.
JournalFile::Place JournalFile::place_at(const fs::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return {};
  return {status.st_dev, status.st_ino};
}

// Returns what happened to the file. Empty: it is there with at least so many bytes, or its state
// can't be read.
std::string JournalFile::change_of(const fs::path& path, const Place& place, std::uint64_t bytes) {
  struct stat status {};
  const bool is_known = ::stat(path.c_str(), &status) == 0;
  if (!is_known && errno != ENOENT && errno != ENOTDIR && errno != ELOOP) return {};
  if (!is_known || Place{status.st_dev, status.st_ino} != place) return path.string() + kGone;
  if (static_cast<std::uint64_t>(status.st_size) < bytes) return path.string() + " was cut off";
  return {};
}

bool JournalFile::is_at(const fs::path& path, const Place& place) {
  return change_of(path, place).empty();
}

// Returns the first file that has changed, and what happened to it; empty: none has.
std::string JournalFile::out_of_place() const {
  constexpr std::uint64_t kFrameHead = 24;
  std::string change = change_of(path_, place_, page_bytes_);
  if (change.empty() && log_place_ != Place()) {
    const std::uint64_t bytes = num_frames_ * (kFrameHead + page_bytes_);
    change = change_of(with(path_, "-wal"), log_place_, bytes);
  }
  if (!change.empty()) return change;
  return change_of(path_.parent_path() / kLockName, place_of(lock_.get()));
}

void JournalFile::take_place() {
  if (const auto now = Clock::now(); database_ && now - place_seen_ >= place_interval_) {
    if (const std::string gone = out_of_place(); !gone.empty()) leave_place(gone);
    place_seen_ = now;
  }
  if (!database_) reopen();
}

// Gives up the files: SQLite would write on to files that no later start finds. Their rows are read
// first.
void JournalFile::leave_place(const std::string& gone) {
  Content kept;
  read_rows(kept);
  for (const std::string& loss : kept.losses) log_error(loss);
  owed_ = std::move(kept.rows);
  leave_log();
  trouble_ = gone;
  log_warning(trouble_, " while it was in use: a new journal gets all that is known");
}

// Closes the database without deleting its log: the file at that path may belong to another
// database by now.
void JournalFile::leave_log() {
  int keep = 1;
  sqlite3_file_control(database_.get(), nullptr, SQLITE_FCNTL_PERSIST_WAL, &keep);
  close();
}

void JournalFile::reopen() {
  try {
    if (copied_ && !owed_) check_what_was_copied();
    if (owed_) {
      if (!is_at(path_.parent_path() / kLockName, place_of(lock_.get()))) take_directory();
      make_anew(*owed_);
      owed_.reset();
    } else {
      open(path_);
    }
  } catch (...) {
    close();
    throw;
  }
  copied_.reset();
  held_.clear();
  trouble_.clear();
}

// Other files at that path lack the rows that are known here, so a new journal is made.
void JournalFile::check_what_was_copied() {
  const fs::path lock = path_.parent_path() / kLockName;
  std::string gone;
  if (place_ != Place()) {
    gone = out_of_place();
  } else if (!is_at(lock, place_of(lock_.get()))) {
    gone = lock.string() + kGone;
  } else if (place_at(path_) != Place()) {  // there was none before
    gone = path_.string() + kGone;
  }
  if (gone.empty()) return;
  owed_ = *copied_;
  log_warning(gone, " while it could not be written: a new journal gets all that is known");
}

// Makes the new journal complete under another name first. So there is always one journal, even if
// this process ends.
void JournalFile::make_anew(const Rows& rows) {
  const fs::path part = with(path_, ".part");
  std::error_code ignored;
  for (const char* suffix : kParts) fs::remove(with(part, suffix), ignored);
  Batch batch;
  for (const auto& [key, content] : rows) batch.push_back({key, content});
  open(part);
  write(batch);
  run("PRAGMA wal_checkpoint(TRUNCATE)");
  close();  // its log is removed, too
  move_file(part, with(path_, ".new"));
  sync_directory(path_.parent_path());
  aside_ = set_aside();
  open(path_);
}

// Moves the log first: a new database must never be beside an old log.
fs::path JournalFile::set_aside() {
  const std::string begin =
      concat(path_.string(), ".damaged-", utc_text(std::time(nullptr), "%Y%m%dT%H%M%SZ"));
  fs::path aside = begin;
  std::error_code error;
  const auto is_taken = [&] {
    return std::ranges::any_of(kParts, [&](const char* part) {
      return fs::exists(fs::symlink_status(with(aside, part), error));
    });
  };
  for (int number = 2; is_taken(); ++number) aside = concat(begin, "-", number);
  for (const char* part : kParts) {
    if (fs::exists(with(path_, part), error)) move_file(with(path_, part), with(aside, part));
  }
  move_file(with(path_, ".new"), path_);
  sync_directory(path_.parent_path());
  return aside;
}

// Nothing of the journal was changed yet, so the ddprund that wrote it can still end its jobs.
void JournalFile::refuse_pair() const {
  throw_invalid(path_.string(),
                " is of a ddprund with --standby or --standby-of, which are gone: let the "
                "ddprund that wrote it end its jobs, or give an empty --state-dir (docs/ha.md)");
}

void JournalFile::read_rows(Content& content) const {
  sqlite3* database = database_.get();
  bool broke = false;
  std::string why;
  for (const char* sql :
       {"SELECT key, content, checksum FROM rows NOT INDEXED ORDER BY rowid",
        "SELECT key, content, checksum FROM rows NOT INDEXED ORDER BY rowid DESC"}) {
    sqlite3_stmt* made = nullptr;
    if (sqlite3_prepare_v2(database, sql, -1, &made, nullptr) != SQLITE_OK) {
      why = sqlite3_errmsg(database);
      break;
    }
    const Statement rows(made);
    int code = SQLITE_ROW;
    while ((code = sqlite3_step(made)) == SQLITE_ROW) {
      std::string key = text_at(made, 0), text = text_at(made, 1);
      if (is_of_pair(key)) refuse_pair();
      if (checksum(key, text) == sqlite3_column_int64(made, 2)) {
        content.rows.emplace(std::move(key), std::move(text));
      } else if (!broke) {
        content.losses.push_back(concat("row \"", one_line(key), "\" was changed on the disk"));
      }
    }
    if (code == SQLITE_DONE) return;
    why = sqlite3_errmsg(database);
    broke = true;
  }
  content.losses.push_back(concat("rows of it can't be read: ", one_line(why)));
}

void JournalFile::read_clock(Content& content) {
  sqlite3_stmt* made = nullptr;
  const char* sql = "SELECT boot, monotonic_ns, commits FROM clock";
  if (sqlite3_prepare_v2(database_.get(), sql, -1, &made, nullptr) != SQLITE_OK) return;
  const Statement row(made);
  if (sqlite3_step(made) != SQLITE_ROW) return;
  const std::int64_t then = sqlite3_column_int64(made, 1);
  commits_ = std::min<std::int64_t>(sqlite3_column_int64(made, 2), kMostCommits);
  if (text_at(made, 0) != boot_ && then >= 0) {
    content.clock_shift = Clock::duration(monotonic_ns() - then);
  }
}

}  // namespace ddprun::journal
