// SPDX-License-Identifier: Apache-2.0
// Opens a file that somebody else chose, without blocking, and says why it can't be opened. Makes a
// file that gets its name once it is complete.
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <string>

#include "common/unique_fd.h"

namespace ddprun {

// Returns the first symbolic link without a target among `path` itself and the directories on its
// way. An example: "/data is a link to /mnt/disk7, which does not exist". Empty: there is none. "No
// such file" about a name that `ls` shows would help nobody.
std::string dangling_link(const std::string& path);

// Returns in one line why `path` could not be opened, from its errno. It also says if a link points
// nowhere, or is another user's.
std::string opening_trouble(const std::string& path, int error);

struct RegularFile {
  UniqueFd fd;               // none: `problem` says why
  struct stat info {};       // of the open file
  std::string problem = {};  // "No such file or directory", "a is a link to b, which …"
};

// Opens a regular file. A pipe, a directory or a device is refused. A pipe (a FIFO, a shell's <(…))
// could keep its reader waiting for ever, and can be read only once. Only the disk can block it.
// `also`: more of open(2)'s flags, such as O_NOFOLLOW.
RegularFile open_regular_file(const std::string& path, int also = 0);

// Whether `path` is a link that belongs neither to this user nor to root. A program that follows it
// may write into any file of this user.
bool is_link_of_others(const std::string& path);

// Opens a file to write, as open(2); `flags` may have O_CREAT. A link of others at the end of
// `path` is not followed. Invalid: errno says why; ELOOP means such a link.
UniqueFd open_to_write(const std::string& path, int flags, mode_t mode);

// Opens a regular file to write at its end. It is made with `mode` if it is missing; `also` may be
// O_TRUNC. Links are handled as in open_to_write().
RegularFile open_regular_file_to_append(const std::string& path, mode_t mode, int also = 0);
// Does the same with the file `name` in an open folder. No link at its end is followed. `path` is
// for texts.
RegularFile open_regular_file_to_append_in(int folder, const std::string& name,
                                           const std::string& path, mode_t mode, int also = 0);

// Returns a text that names those who could change the file or directory of that stat(), besides
// this user and root. Examples are "it belongs to user 7, who could change it", "everybody could
// change it", or for root "group 7 could change it". Empty: nobody can. `kAsRoot`: users outside
// this user namespace, who all look alike, are trusted like root.
enum class Outsiders { kAsRoot, kAsOthers };
std::string change_danger(const struct stat& info, Outsiders outsiders);

// Returns the text of a file that somebody has named: a job file, thresholds.
// Throws Error(kInvalidArgument), "can't read PATH: …", if it is no regular file, if it has more
// than 1 MiB, or with the system's error. Only the disk can block it.
std::string text_of_named_file(const std::string& path);

// A file that gets its final name by rename(), once it is complete.
struct NewFile {
  std::string path;
  UniqueFd fd;  // to write to; invalid: errno says why
};

// Makes the file PREFIX and 12 random digits, which did not exist before. At a name that can be
// guessed, others who may write to the folder could have put a link to a user's file. Throws
// Error(kSystem) if there are no random numbers.
NewFile make_new_file(const std::string& prefix, mode_t mode);

// Makes new names in the directory survive a crash of the machine. File systems that don't support
// it keep the order by themselves.
void sync_directory(const std::string& path);

}  // namespace ddprun
