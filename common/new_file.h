// SPDX-License-Identifier: Apache-2.0
// A file that gets its own name by rename(), once it is whole.
#pragma once

#include <sys/types.h>

#include <string>

#include "common/unique_fd.h"

namespace ddprun {

struct NewFile {
  std::string path;
  UniqueFd fd;  // to write to; none: errno says why
};

// The file PREFIX and 12 random digits, which was not there before. Others who may write to the
// folder could have put a link to a user's file at a name that can be guessed. Throws
// Error(kSystem): there is no random number.
NewFile make_new_file(const std::string& prefix, mode_t mode);

// Its new names outlast the machine from then on. File systems without that keep the order by
// themselves.
void sync_directory(const std::string& path);

}  // namespace ddprun
