// SPDX-License-Identifier: Apache-2.0
// An environment as a value, so that plain functions can read or build one.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace ddprun {

using Environment = std::map<std::string, std::string>;

// Returns this process' environment. If a name occurs twice, the first value counts, as in
// getenv(3).
Environment current_environment();

// Returns the variable's value; nullopt if it is unset or empty.
std::optional<std::string> find_variable(const Environment& environment, const std::string& name);

// Returns a directory of this user's files of one kind: the value of `variable` (XDG_CACHE_HOME),
// or `below_home` (".cache") in HOME. nullopt: there is neither.
std::optional<std::string> user_directory(const Environment& environment,
                                          const std::string& variable,
                                          const std::string& below_home);

// Reads "NAME=value" texts; skips one without "=". If a name occurs twice, the first value counts.
Environment from_strings(const std::vector<std::string>& strings);

// Returns "NAME=value" for each variable, as execve(2) expects.
std::vector<std::string> to_strings(const Environment& environment);

// Returns those of the launcher's variables that the workers on other hosts get. They are all
// except ddprun's own options and those of the machine, the login session and the terminal. These
// are HOME, HOSTNAME, PWD, DISPLAY, SSH_…, XDG_… (docs/ssh.md). srun, Hydra and Horovod do the
// same. `wishes` are --env's: NAME (this one, too, if it is set), NAME=VALUE, NAME= (empty), or
// -NAME (not this one); later ones win. The result is sorted NAME=VALUE strings.
std::vector<std::string> forwarded_environment(const Environment& environment,
                                               const std::vector<std::string>& wishes);

// Returns "" or what is wrong with one value of --env.
std::string check_env_wish(const std::string& wish);

}  // namespace ddprun
