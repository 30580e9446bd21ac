// SPDX-License-Identifier: Apache-2.0
// One option of ddprun: how it is called, what is said of it, and where its value goes. The command
// line, the environment, the configuration files, --help, the man pages and the shells' completions
// are all made from a table of these (option_table.h).
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "launcher/launch_config.h"

namespace ddprun::launcher {

// Sets a field from the value as it was given. Returns "" or what is wrong with the value, as in
// "wants a number from 0 to 65535".
using OptionSetter = std::function<std::string(const std::string& value, LaunchConfig& config)>;

struct Option {
  std::string name;      // "max-restarts": on the command line with "--"
  std::string value;     // what it takes, as shown: "N", "auto|gpu|cpu"; empty: a switch
  std::string fallback;  // what counts where nobody gives it; empty: no value that could be given
  std::string help;      // one line
  std::string group;     // heading that it stands under
  OptionSetter set;
  char letter = 0;  // "-m"; 0: none
  // Whether the environment and the configuration files can give it. Not where ddprun is to do
  // something else than run a job, nor where the nodes meet: endpoint_discovery.h has an order of
  // its own for that.
  bool only_typed = false;
  // Of a flag that is given more than once all values count: the setter gets them joined by
  // `separator`.
  bool repeats = false;
  char separator = '\0';

  bool is_switch() const { return value.empty(); }
};

// ---- setters ----

// Any text, the empty one, too.
OptionSetter text_to(std::string LaunchConfig::*field);
// Likewise, but "--flag=$VARIABLE" with an unset variable is a problem.
OptionSetter nonempty_text_to(std::string LaunchConfig::*field);
// 1, true, yes, on, or 0, false, no, off.
OptionSetter switch_to(bool LaunchConfig::*field);
OptionSetter number_to(int LaunchConfig::*field, int most = 1'000'000);
// Seconds, with a fraction where one is given; 0 … 1000 days.
OptionSetter seconds_to(std::chrono::milliseconds LaunchConfig::*field);
// Likewise, but more than 0.
OptionSetter positive_seconds_to(std::chrono::milliseconds LaunchConfig::*field);

// "A|B|C" of the help, for values that are one of few words.
bool is_one_of(std::string_view words, std::string_view value);

}  // namespace ddprun::launcher
