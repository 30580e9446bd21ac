// SPDX-License-Identifier: Apache-2.0
// An environment as a value, so that what reads or builds one can be a plain function.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace ddprun {

using Environment = std::map<std::string, std::string>;

// This process' environment. Of a name that occurs twice the first value counts, as for getenv(3).
Environment current_environment();

// The variable's value; nullopt where it is unset or empty.
std::optional<std::string> find_variable(const Environment& environment, const std::string& name);

// Of "NAME=value" texts; one without "=" is none. Of a name that occurs twice the first one counts.
Environment from_strings(const std::vector<std::string>& strings);

// "NAME=value" for each variable, as execve(2) wants them.
std::vector<std::string> to_strings(const Environment& environment);

}  // namespace ddprun
