// SPDX-License-Identifier: Apache-2.0
// What this machine's own ddprun says of the flags that a job means.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

#include "ctl/submit/job_file.h"

namespace ddprun::submit {

// The ddprun beside the running program; "ddprun" where there is none.
std::string ddprun_beside();

// What `ddprun --show-config` says with them; empty: there is no ddprun here, or it is of another
// kind. Throws Error(kInvalidArgument), a line for each thing that it refuses, or for each of the
// job's `flags` that isn't theirs to say at `place` (decided_flags.h).
std::string check_flags(const JobFile& job, const std::string& ddprun, std::string_view place);

// The time that such a text has for `key`, given or by default. nullopt: it has none. Pure.
std::optional<std::chrono::milliseconds> shown_time(std::string_view config,
                                                    const std::string& key);

}  // namespace ddprun::submit
