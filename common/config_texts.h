// SPDX-License-Identifier: Apache-2.0
// The texts of the ddprun.toml files that a program of this user reads. Each program gives the keys
// their meaning (docs/launcher.md).
#pragma once

#include <string>
#include <vector>

#include "common/environment.h"

namespace ddprun {

struct ConfigText {
  std::string path, text;
  bool is_hidden = false;  // this user can't enter its directory: nothing is known
};

// A configuration names programs and their environment. Somebody who can change it runs programs as
// the user who obeys it. One that wasn't named is refused where it is neither this user's nor
// root's, or where everybody may change it; for root also where another group may.
//
// Those that there are, strongest one first: `named` (which must be there; empty: none), then
// $XDG_CONFIG_HOME/ddprun/ddprun.toml (default ~/.config), then /etc/ddprun/ddprun.toml. Throws
// Error(kInvalidArgument) where one can't be read or is refused; one that may be there, in a
// directory that this user can't enter (HOME is still another user's: a container's, sudo's), is
// empty and is_hidden.
std::vector<ConfigText> read_config_texts(const std::string& named, const Environment& environment);

}  // namespace ddprun
