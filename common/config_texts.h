// SPDX-License-Identifier: Apache-2.0
// The texts of the ddprun.toml files that a program of this user reads. Each program interprets the
// keys itself (docs/launcher.md).
#pragma once

#include <string>
#include <vector>

#include "common/environment.h"

namespace ddprun {

struct ConfigText {
  std::string path, text;
  bool is_hidden = false;  // this user can't enter its directory: nothing is known
};

// A configuration names programs and their environment. Somebody who can change it can run programs
// as the user who reads it. So a file that the user hasn't named is refused if it is neither this
// user's nor root's, or if everybody may change it. For root it is also refused if another group
// may change it.
//
// Returns the texts that exist, strongest one first: `named` (which must be there; empty: none),
// then $XDG_CONFIG_HOME/ddprun/ddprun.toml (default ~/.config), then /etc/ddprun/ddprun.toml.
// Throws Error(kInvalidArgument) if one can't be read or is refused. One that may exist in a
// directory that this user can't enter has an empty text and is_hidden. HOME is still another
// user's then (a container's, sudo's).
std::vector<ConfigText> read_config_texts(const std::string& named, const Environment& environment);

}  // namespace ddprun
