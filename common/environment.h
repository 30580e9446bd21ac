// SPDX-License-Identifier: Apache-2.0
// An environment as a value, so that what reads or builds one can be a plain function.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace ddprun {

using Environment = std::map<std::string, std::string>;

// This process' environment. If a name occurs twice, the first value counts, as for getenv(3).
Environment current_environment();

// The variable's value; nullopt where it is unset or empty.
std::optional<std::string> find_variable(const Environment& environment, const std::string& name);

// A directory of this user's files of one kind: the value of `variable` (XDG_CACHE_HOME), or
// `below_home` (".cache") in HOME. nullopt: there is neither.
std::optional<std::string> user_directory(const Environment& environment,
                                          const std::string& variable,
                                          const std::string& below_home);

// Reads "NAME=value" texts; skips one without "=". If a name occurs twice, the first value counts.
Environment from_strings(const std::vector<std::string>& strings);

// "NAME=value" for each variable, as execve(2) wants them.
std::vector<std::string> to_strings(const Environment& environment);

// Those of the launcher's variables that the workers on other hosts get. They are all but ddprun's
// own options, and those of the machine, the login session and the terminal. These are HOME,
// HOSTNAME, PWD, DISPLAY, SSH_…, XDG_… (docs/ssh.md). srun, Hydra and Horovod do the same. `wishes`
// are --env's: NAME (this one, too, where it is set), NAME=VALUE, NAME= (empty), or -NAME (not this
// one); later ones win. NAME=VALUE strings, sorted.
std::vector<std::string> forwarded_environment(const Environment& environment,
                                               const std::vector<std::string>& wishes);

// "" or what is wrong with one value of --env.
std::string check_env_wish(const std::string& wish);

}  // namespace ddprun
