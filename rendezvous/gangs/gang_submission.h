// SPDX-License-Identifier: Apache-2.0
// What a client looks at before it submits a gang. Pure.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "rendezvous/gangs/gang.h"

namespace ddprun::gangs {

// SIGTERM → SIGKILL of a gang whose ddprun has this --shutdown-timeout: it has an end of its own.
std::int64_t stop_ms_of(std::chrono::milliseconds shutdown_timeout);

// The gang's variables are those of `variables` (NAME=VALUE) that are UTF-8 text. Returns a line
// for people for each other one, which stays here.
std::vector<std::string> take_environment(std::vector<std::string> variables, GangSpec& spec);

// Why a queue would not take it, one line; empty: it would. `keep_back`: how a variable is kept
// back, for people.
std::string check_submission(const GangSpec& spec, const std::string& keep_back);

}  // namespace ddprun::gangs
