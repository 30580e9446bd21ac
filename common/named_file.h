// SPDX-License-Identifier: Apache-2.0
// The text of a file that somebody has named: a job file, thresholds.
#pragma once

#include <string>

namespace ddprun {

// Throws Error(kInvalidArgument), "can't read PATH: …", of no regular file, one of more than 1 MiB,
// and what the system says. Never blocks but for the disk.
std::string text_of_named_file(const std::string& path);

}  // namespace ddprun
