// SPDX-License-Identifier: Apache-2.0
// A file of somebody else's choice, opened so that nobody waits for it, and why it could not be.
#pragma once

#include <sys/stat.h>

#include <string>

#include "common/unique_fd.h"

namespace ddprun {

// Symbolic links that point nowhere: "no such file" about a name that `ls` shows helps nobody. The
// first link without a target among `path` itself and the directories on its way:
// "/data is a link to /mnt/disk7, which does not exist". Empty: there is none.
std::string dangling_link(const std::string& path);

// Why `path` could not be opened, by its errno: one line, of a link that points nowhere, or is
// another user's, that.
std::string opening_trouble(const std::string& path, int error);

struct RegularFile {
  UniqueFd fd;               // none: `problem` says why
  struct stat info {};       // of what is open
  std::string problem = {};  // "No such file or directory", "a is a link to b, which …"
};

// A pipe, a directory or a device is none. A pipe (a FIFO, a shell's <(…)) could keep its reader
// waiting for ever and can be read once alone. Never blocks but for the disk.
RegularFile open_regular_file(const std::string& path);

// Whether `path` is a link of somebody besides this user and root. To follow it could lead what is
// written into any file of this user.
bool is_link_of_others(const std::string& path);

// open(2) to write, with O_CREAT, too. A link of others at the end of `path` is not followed. None:
// errno says why, ELOOP of such a link.
UniqueFd open_to_write(const std::string& path, int flags, mode_t mode);

// The same to write at its end. It is made with `mode` where it is missing; `also`: O_TRUNC. Links
// are as to open_to_write().
RegularFile open_regular_file_to_append(const std::string& path, mode_t mode, int also = 0);
// The same of the file `name` in an open folder. No link at its end is followed. `path` is for
// texts.
RegularFile open_regular_file_to_append_in(int folder, const std::string& name,
                                           const std::string& path, mode_t mode, int also = 0);

// A text that names those who could change the file or directory of that stat(), besides this user
// and root. It is "it belongs to user 7, who could change it", "everybody could change it", or for
// root "group 7 could change it". Empty: nobody can. kAsRoot: users outside this user namespace,
// who look all alike, are trusted like root.
enum class Outsiders { kAsRoot, kAsOthers };
std::string change_danger(const struct stat& info, Outsiders outsiders);

}  // namespace ddprun
