// SPDX-License-Identifier: Apache-2.0
// How a journal is taken up again: as it is, damaged, or on a disk that can't be written.
#include <fcntl.h>
#include <sqlite3.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <iterator>
#include <system_error>
#include <utility>

#include "common/clock.h"
#include "common/error.h"
#include "common/log.h"
#include "rendezvous/journal/journal_file.h"

namespace ddprun::journal {
namespace {

namespace fs = std::filesystem;

// The database and its log. What SQLite keeps beside them can be made anew.
constexpr const char* kParts[] = {"-wal", "-shm", ""};

fs::path with(const fs::path& path, const char* suffix) { return path.string() + suffix; }

std::string time_text() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  char text[32];
  std::strftime(text, sizeof text, "%Y%m%dT%H%M%SZ", &utc);
  return text;
}

void sync_directory(const fs::path& directory) {
  const UniqueFd fd(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd) ::fsync(fd.get());
}

// Of a copy that is read and thrown away.
class CopyDirectory {
 public:
  CopyDirectory() {
    std::error_code error;
    for (const fs::path& parent : {fs::path("/dev/shm"), fs::temp_directory_path(error)}) {
      std::string path = parent / "ddprund-XXXXXX";
      if (::mkdtemp(path.data()) == nullptr) continue;
      path_ = path;
      return;
    }
    throw_system_error("no directory for a copy of the journal", errno);
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

}  // namespace

// By its first bytes.
bool JournalFile::is_journal(const fs::path& file) {
  constexpr std::string_view kMagic("SQLite format 3\0", 16);
  constexpr std::size_t kIdAt = 68;
  char head[kIdAt + 4] = {};
  const UniqueFd fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd || ::pread(fd.get(), head, sizeof head, 0) != sizeof head) return false;
  std::uint32_t id = 0;  // big-endian
  for (std::size_t i = kIdAt; i < sizeof head; ++i) {
    id = id << 8 | static_cast<unsigned char>(head[i]);
  }
  return std::string_view(head, kMagic.size()) == kMagic && id == kApplicationId;
}

void JournalFile::start() {
  try {
    std::error_code error;
    // A start that was interrupted once the new journal was whole.
    const fs::path made = with(path_, ".new");
    if (fs::exists(made, error) && !is_journal(made)) {
      log_warning(made.string(), " is no journal, and not looked at");
    } else if (fs::exists(made, error)) {
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

// Both ends of the table, as far as each can be read; then a new database that has them.
void JournalFile::salvage() {
  Content kept;
  if (database_) {
    read_clock(database_.get(), kept);
    read_rows(database_.get(), kept);
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

// What it has is known then, and is written to it when that is possible again.
void JournalFile::read_copy(const std::string& why) {
  close();
  trouble_ = why;
  const Place place = place_at(path_), log_place = place_at(with(path_, "-wal"));
  Content content;
  std::error_code missing;
  if (fs::file_size(path_, missing) > 0 && !missing) {
    try {
      const CopyDirectory directory;
      const fs::path copy = directory.path() / path_.filename();
      for (const char* part : {"-wal", ""}) {
        std::error_code none;
        fs::copy_file(with(path_, part), with(copy, part), none);
        if (none && *part == '\0') throw fs::filesystem_error("can't read", path_, none);
      }
      try {
        open(copy);
        read_clock(database_.get(), content);
        read_rows(database_.get(), content);
      } catch (const Error& error) {
        if (error.code() != ErrorCode::kProtocol) throw;
        content.losses.emplace_back("the journal is damaged");
        if (database_) read_clock(database_.get(), content);
        if (database_) read_rows(database_.get(), content);
      }
      if (!content.losses.empty()) owed_ = content.rows;
      close();
    } catch (const fs::filesystem_error& error) {
      throw Error(ErrorCode::kUnavailable, concat(why, "; and ", error.what()));
    }
  }
  place_ = place;
  log_place_ = log_place;
  copied_ = content.rows;
  held_.clear();
  for (const char* part : {"", "-wal"}) {
    held_.emplace_back(::open(with(path_, part).c_str(), O_PATH | O_CLOEXEC));
  }
  read_ = std::move(content);
}

JournalFile::Place JournalFile::place_of(int fd) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) return {};
  return {status.st_dev, status.st_ino};
}

// Of a file; else of none.
JournalFile::Place JournalFile::place_at(const fs::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return {};
  return {status.st_dev, status.st_ino};
}

// Also where nobody can say.
bool JournalFile::is_at(const fs::path& path, const Place& place) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) {
    return errno != ENOENT && errno != ENOTDIR && errno != ELOOP;
  }
  return Place{status.st_dev, status.st_ino} == place;
}

// The first of the files that is not where it was; empty: all are.
std::string JournalFile::out_of_place() const {
  const fs::path log = with(path_, "-wal"), lock = path_.parent_path() / kLockName;
  if (!is_at(path_, place_)) return path_.string();
  if (log_place_ != Place() && !is_at(log, log_place_)) return log.string();
  if (!is_at(lock, place_of(lock_.get()))) return lock.string();
  return {};
}

void JournalFile::take_place() {
  if (const auto now = Clock::now(); database_ && now - place_seen_ >= place_interval_) {
    if (const std::string gone = out_of_place(); !gone.empty()) leave_place(gone);
    place_seen_ = now;
  }
  if (!database_) reopen();
}

// SQLite would write on, to files that no later start finds. What they have is still read.
void JournalFile::leave_place(const std::string& gone) {
  Content kept;
  read_rows(database_.get(), kept);
  for (const std::string& loss : kept.losses) log_error(loss);
  owed_ = std::move(kept.rows);
  leave_log();
  trouble_ = concat(gone, " was removed, moved or replaced");
  log_warning(trouble_, " while it was in use: a new journal gets all that is known");
}

// A log at that path is another's by now: it is not deleted with ours.
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

// Where other files lie there by now they have not what is known here.
void JournalFile::check_what_was_copied() {
  const fs::path lock = path_.parent_path() / kLockName;
  std::string gone;
  if (place_ != Place()) {
    gone = out_of_place();
  } else if (!is_at(lock, place_of(lock_.get()))) {
    gone = lock.string();
  } else if (place_at(path_) != Place()) {  // where there was none
    gone = path_.string();
  }
  if (gone.empty()) return;
  owed_ = *copied_;
  log_warning(
      gone,
      " was removed, moved or replaced while it could not be written: a new journal gets all "
      "that is known");
}

// Whole under another name first: whatever ends this process, one of the two is there.
void JournalFile::make_anew(const Rows& rows) {
  const fs::path part = with(path_, ".part");
  std::error_code ignored;
  for (const char* suffix : kParts) fs::remove(with(part, suffix), ignored);
  Batch batch;
  for (const auto& [key, content] : rows) batch.push_back({key, content});
  open(part);
  write(batch);
  run("PRAGMA wal_checkpoint(TRUNCATE)");
  close();  // its log goes with it
  std::error_code error;
  fs::rename(part, with(path_, ".new"), error);
  if (error)
    throw Error(ErrorCode::kSystem, concat("can't rename ", part.string(), ": ", error.message()));
  sync_directory(path_.parent_path());
  aside_ = set_aside();
  open(path_);
}

// The log first: a new database must never meet an old one's.
fs::path JournalFile::set_aside() {
  const std::string begin = path_.string() + ".damaged-" + time_text();
  fs::path aside = begin;
  std::error_code error;
  const auto is_taken = [&] {
    return std::any_of(std::begin(kParts), std::end(kParts), [&](const char* part) {
      return fs::exists(fs::symlink_status(with(aside, part), error));
    });
  };
  for (int number = 2; is_taken(); ++number) aside = concat(begin, "-", number);
  for (const char* part : kParts) {
    if (!fs::exists(with(path_, part), error)) continue;
    fs::rename(with(path_, part), with(aside, part), error);
    if (error)
      throw Error(ErrorCode::kSystem,
                  concat("can't rename ", path_.string(), part, ": ", error.message()));
  }
  fs::rename(with(path_, ".new"), path_, error);
  if (error)
    throw Error(ErrorCode::kSystem,
                concat("can't rename ", path_.string(), ".new: ", error.message()));
  sync_directory(path_.parent_path());
  return aside;
}

// Nothing of it was changed yet. The ddprund that wrote it may still end its jobs.
void JournalFile::refuse_pair() const {
  throw Error(
      ErrorCode::kInvalidArgument,
      concat(path_.string(),
             " is of a ddprund with --standby or --standby-of, which are gone: let the "
             "ddprund that wrote it end its jobs, or give an empty --state-dir (docs/ha.md)"));
}

void JournalFile::read_rows(sqlite3* database, Content& content) const {
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

void JournalFile::read_clock(sqlite3* database, Content& content) {
  sqlite3_stmt* made = nullptr;
  const char* sql = "SELECT boot, monotonic_ns, commits FROM clock";
  if (sqlite3_prepare_v2(database, sql, -1, &made, nullptr) != SQLITE_OK) return;
  const Statement row(made);
  if (sqlite3_step(made) != SQLITE_ROW) return;
  commits_ = sqlite3_column_int64(made, 2);
  if (text_at(made, 0) != boot_) {
    content.clock_shift = Clock::duration(monotonic_ns() - sqlite3_column_int64(made, 1));
  }
}

}  // namespace ddprun::journal
