// SPDX-License-Identifier: Apache-2.0
// Opens and moves a journal's files on the disk, and refuses files that other users could change.
#pragma once

#include <sys/stat.h>

#include <filesystem>
#include <string>

#include "common/unique_fd.h"

namespace ddprun::journal {

// Throws Error(kUnavailable), which says that another process, `holder`, has the journal at `path`.
[[noreturn]] void refuse_second(const std::filesystem::path& path, const std::string& holder);

// Called after SQLite's error `code`. Does the same as refuse_second() if another ddprund has the
// database: then its `lock` file was removed. A person who looks at the database with another
// program doesn't count: that disturbs no job.
void refuse_if_taken(const std::filesystem::path& path, int code);

// Returns the lock's holder as the lock file says: "pid 4711" or "another process".
std::string holder_of(int lock);

// Refuses a file that other users could change, by Error(kInvalidArgument). The rows have many
// users' commands, so a person who can change them can run commands as these users.
void refuse_others(const std::filesystem::path& path, const struct stat& info);

// Opens one of a journal's files; O_CREAT makes it for its owner alone. Returns no descriptor on
// failure, with errno. Doesn't block on a pipe. Throws Error if the file is refused.
UniqueFd open_file(const std::filesystem::path& file, int flags);
// Returns whether an errno of open() means that the disk, and not the path, is the problem.
bool is_unwritable(int error);
[[noreturn]] void fail_to_open(const std::filesystem::path& file, int error);

void move_file(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace ddprun::journal
