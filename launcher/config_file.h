// SPDX-License-Identifier: Apache-2.0
// ddprun.toml: what a cluster or a user sets once. docs/launcher.md has the keys.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/environment.h"

namespace ddprun::launcher {

struct ConfigFile {
  std::string path;                // for messages: which file said it
  std::string rdzv_endpoint;       // rdzv_endpoint = "HOST[:PORT]"
  std::vector<std::string> hosts;  // hosts = ["n1", "n2"]: the first one serves
  std::string topology = {};       // topology = "pod1.rack7": of this node
  std::string preflight = {};      // preflight = "COMMAND": as --preflight
};

// Pure. Throws Error(kInvalidArgument) "path:line: what is wrong": not TOML, a key of another type,
// an unknown key (with a suggestion).
ConfigFile parse_config_file(std::string_view text, const std::string& path);

// The files that exist, first one first: $XDG_CONFIG_HOME/ddprun/ddprun.toml (default ~/.config),
// then /etc/ddprun/ddprun.toml. Throws as parse_config_file, and where a file can't be read.
std::vector<ConfigFile> load_config_files(const Environment& environment);

}  // namespace ddprun::launcher
