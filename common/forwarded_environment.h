// SPDX-License-Identifier: Apache-2.0
// Which of the launcher's variables the workers on other hosts get. Pure.
#pragma once

#include <string>
#include <vector>

#include "common/environment.h"

namespace ddprun {

// All variables but those of the machine, the login session and the terminal (HOME, HOSTNAME, PWD,
// DISPLAY, SSH_…, XDG_…: docs/ssh.md), and ddprun's own options: as with srun, Hydra and Horovod.
// `wishes` are --env's: NAME (this one, too, where it is set), NAME=VALUE, NAME= (empty), or -NAME
// (not this one); later ones win. NAME=VALUE strings, sorted.
std::vector<std::string> forwarded_environment(const Environment& environment,
                                               const std::vector<std::string>& wishes);

// "" or what is wrong with one value of --env.
std::string check_env_wish(const std::string& wish);

}  // namespace ddprun
