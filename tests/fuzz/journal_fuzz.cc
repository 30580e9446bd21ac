// SPDX-License-Identifier: Apache-2.0
// Fuzzes the files that ddprund reads when it starts. The first byte of the input chooses a kind.
// The rest is the journal's database, its log beside a whole database, or one row of a whole job. A
// row is its name up to a 0, then its content. Beyond "no crash" this must hold:
//  - a journal is refused with an Error, or is usable: later commits are there again;
//  - rows become jobs, or are given up with one line; the machine goes on from both.
#include <stdlib.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

#include "common/check.h"
#include "common/error.h"
#include "common/log.h"
#include "rendezvous/journal/journal_file.h"
#include "rendezvous/membership/machine.h"

namespace {

using namespace ddprun;
using namespace ddprun::journal;
namespace fs = std::filesystem;

// One directory for all inputs, in memory where there is such a file system.
const fs::path& directory() {
  static const fs::path made = [] {
    std::string path =
        fs::exists("/dev/shm") ? "/dev/shm/journal_fuzz-XXXXXX" : "journal_fuzz-XXXXXX";
    DDPRUN_CHECK(::mkdtemp(path.data()) != nullptr);
    std::atexit([] {
      std::error_code ignored;
      fs::remove_all(directory(), ignored);
    });
    return fs::path(path);
  }();
  return made;
}

void write_file(const std::string& name, std::string_view bytes) {
  std::ofstream(directory() / name, std::ios::binary | std::ios::trunc) << bytes;
}

membership::MachineOptions journalled() {
  membership::MachineOptions options;
  options.journalled = true;
  return options;
}

// A job of one node, in its first round.
const Rows& whole_job() {
  static const Rows made = [] {
    membership::JobTable table(journalled(), [] { return std::string("session"); });
    membership::event::Message message;
    message.connection = 1;
    membership::Join join;
    join.run_id = "job";
    join.instance = "i";
    message.envelope = {0, 0, join};
    message.facts.peer_addr = "10.0.0.1";
    table.step(message, Clock::time_point(std::chrono::hours(1)));
    Rows rows;
    for (const RowChange& row : table.take_changes()) rows[row.key] = *row.content;
    return rows;
  }();
  return made;
}

void check_rows(const Rows& rows) {
  membership::JobTable table(journalled(), [] { return std::string("s"); });
  Clock::time_point now{std::chrono::hours(1)};
  const auto actions = table.restore(rows, Clock::duration::zero(), now);
  DDPRUN_CHECK(rows.empty() || table.idle() || !actions.empty());
  for (int i = 0; i < 20; ++i) {
    const auto next = table.next_deadline();
    DDPRUN_CHECK(table.idle() || next);
    if (!next) break;
    now = std::max(now, *next);
    table.step(membership::event::Tick{}, now);
    table.take_changes();
    table.status();
  }
}

void check_files() {
  std::size_t kept = 0;
  try {
    JournalFile file(directory(), Durability::kProcess);
    const auto content = file.load();
    check_rows(content.rows);
    kept = content.rows.size() + (content.rows.count("new") == 0 ? 1 : 0);
    file.commit({{"new", "1"}});
  } catch (const Error& error) {
    // kSystem: SQLite says of some damage that it is out of memory. kInvalidArgument: a row's name
    // is one of a pair's.
    DDPRUN_CHECK(error.code() == ErrorCode::kUnsupported ||
                 error.code() == ErrorCode::kInvalidArgument ||
                 error.code() == ErrorCode::kUnavailable || error.code() == ErrorCode::kSystem);
    return;
  }
  const auto again = JournalFile(directory(), Durability::kProcess).load();
  DDPRUN_CHECK(again.rows.size() == kept && again.rows.at("new") == "1");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  set_log_level(LogLevel::kError);
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] % 3 == 2) {
    Rows rows = whole_job();
    const std::size_t end = bytes.find('\0');
    if (end == bytes.npos) return 0;
    rows[std::string(bytes.substr(0, end))] = std::string(bytes.substr(end + 1));
    check_rows(rows);
    return 0;
  }
  for (const auto& entry : fs::directory_iterator(directory())) fs::remove_all(entry.path());
  if (data[0] % 3 == 0) {
    write_file("journal.db", bytes);
  } else {
    JournalFile(directory(), Durability::kProcess).commit({{"a", "1"}, {"b", "2"}});
    write_file("journal.db-wal", bytes);
  }
  check_files();
  return 0;
}
