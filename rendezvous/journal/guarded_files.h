// SPDX-License-Identifier: Apache-2.0
// A journal's files on the disk: opened, moved, and refused where others could change them.
#pragma once

#include <sys/stat.h>

#include <filesystem>
#include <string>

#include "common/unique_fd.h"

namespace ddprun::journal {

// Throws Error(kUnavailable): another process, `holder`, has the journal at `path`.
[[noreturn]] void refuse_second(const std::filesystem::path& path, const std::string& holder);

// To be called after SQLite's error `code`. Refuses as refuse_second() if another ddprund has the
// database: somebody has removed the `lock` that would have said so. A person who looks at it with
// another program leaves the jobs alone.
void refuse_if_taken(const std::filesystem::path& path, int code);

// The lock's holder, where the lock file and /proc say it.
std::string holder_of(int lock);

// Refuses files that others could change. The rows have commands of many users: one who can change
// them runs commands as these users. Throws Error(kInvalidArgument).
void refuse_others(const std::filesystem::path& path, const struct stat& info);

// Opens one of a journal's files, with O_CREAT for their owner alone. None: errno says why. A pipe
// holds nobody up. Throws Error.
UniqueFd open_file(const std::filesystem::path& file, int flags);
// Whether an errno of open() says that the path is right, and the disk isn't.
bool is_unwritable(int error);
[[noreturn]] void fail_to_open(const std::filesystem::path& file, int error);

void move_file(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace ddprun::journal
