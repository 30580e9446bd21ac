// SPDX-License-Identifier: Apache-2.0
// Reads ddprun.toml, which a cluster or a user writes once. docs/launcher.md has the keys.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/environment.h"

namespace ddprun::launcher {

// A value that a file gives for one option.
struct ConfigEntry {
  std::string option;  // its name: "max-restarts"
  std::string value;
  int line = 0;
};

struct ConfigFile {
  std::string path;                       // for messages
  std::string rdzv_endpoint;              // rdzv_endpoint = "HOST[:PORT],…"
  std::vector<std::string> hosts;         // hosts = ["n1", "n2"]: the first one serves
  std::string topology = {};              // topology = "pod1.rack7": of this node
  std::vector<ConfigEntry> options = {};  // max_restarts = 3
  bool is_hidden = false;                 // this user can't enter its directory: nothing is known
};

// Pure. Throws Error(kInvalidArgument) with a line "path:line: what is wrong" for each error: not
// TOML, a wrong type, an unknown key (with a suggestion).
ConfigFile parse_config_file(std::string_view text, const std::string& path);

// Parses the files of read_config_texts(). Throws as that and as parse_config_file(), with the
// lines of all files.
std::vector<ConfigFile> load_config_files(const std::string& named, const Environment& environment);

}  // namespace ddprun::launcher
