// SPDX-License-Identifier: Apache-2.0
// A file that gets its final name by rename(), once it is complete.
#pragma once

#include <sys/types.h>

#include <string>

#include "common/unique_fd.h"

namespace ddprun {

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
