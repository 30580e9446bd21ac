// SPDX-License-Identifier: Apache-2.0
// The text of a file that somebody has named: a job file, thresholds.
#pragma once

#include <string>

namespace ddprun {

// Throws Error(kInvalidArgument), "can't read PATH: …", if it is no regular file, if it has more
// than 1 MiB, or with the system's error. Only the disk can block it.
std::string text_of_named_file(const std::string& path);

}  // namespace ddprun
