// SPDX-License-Identifier: Apache-2.0
// A journal that is read, or made another one as a whole, while it serves.
#include <sqlite3.h>

#include <utility>

#include "common/error.h"
#include "common/log.h"
#include "rendezvous/journal/journal_file.h"

namespace ddprun::journal {
namespace {

// A read's statement holds a lock until it is reset.
class Reading {
 public:
  Reading(sqlite3_stmt* statement, const std::string& key) : statement_(statement) {
    sqlite3_bind_text(statement, 1, key.data(), static_cast<int>(key.size()), SQLITE_STATIC);
  }
  ~Reading() { sqlite3_reset(statement_); }
  Reading(const Reading&) = delete;
  Reading& operator=(const Reading&) = delete;

 private:
  sqlite3_stmt* const statement_;
};

}  // namespace

std::string JournalFile::checked_content(sqlite3_stmt* row) const {
  std::string content = text_at(row, 1);
  const std::string key = text_at(row, 0);
  if (checksum(key, content) != sqlite3_column_int64(row, 2)) {
    throw Error(ErrorCode::kSystem, concat("row \"", one_line(key), "\" of ", path_.string(),
                                           " was changed on the disk"));
  }
  return content;
}

Rows JournalFile::read_after(const std::string& key, std::size_t max_bytes) {
  if (!database_) reopen(own_clock());
  const Reading reading(read_after_.get(), key);
  Rows rows;
  std::size_t num_bytes = 0;
  while (num_bytes < max_bytes) {
    const int code = sqlite3_step(read_after_.get());
    if (code == SQLITE_DONE) break;
    if (code != SQLITE_ROW) fail("read");
    std::string name = text_at(read_after_.get(), 0);
    std::string content = checked_content(read_after_.get());
    num_bytes += name.size() + content.size();
    rows.emplace(std::move(name), std::move(content));
  }
  return rows;
}

std::optional<std::string> JournalFile::read(const std::string& key) {
  if (!database_) reopen(own_clock());
  const Reading reading(read_row_.get(), key);
  const int code = sqlite3_step(read_row_.get());
  if (code == SQLITE_DONE) return std::nullopt;
  if (code != SQLITE_ROW) fail("read");
  return checked_content(read_row_.get());
}

JournalFile::Content JournalFile::content() {
  if (!database_) reopen(own_clock());
  Content content;
  read_clock(database_.get(), content);
  read_rows(database_.get(), content);
  content.may_lack_end = may_lack_end_;
  return content;
}

void JournalFile::begin_anew() {
  take_place(own_clock());
  set_synced(true);  // it ends in whose rows they are
  step(begin_);
  run("DELETE FROM rows");
}

void JournalFile::add(const Batch& rows) { change(rows); }

void JournalFile::finish(const ClockStamp& clock) {
  end_commit(clock);
  note_commit();
}

}  // namespace ddprun::journal
