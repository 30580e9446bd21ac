// SPDX-License-Identifier: Apache-2.0
// Makes the texts that are printed in place of a job, from the table of options. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/environment.h"
#include "launcher/config_file.h"
#include "launcher/options/option_values.h"

namespace ddprun::launcher {

// Texts of --help, -h (one screen) and --version.
std::string help_text();
std::string short_help_text();
std::string version_text();

// Returns --print-man's page in roff, for "ddprun" or "ddprun.toml"; empty: another name.
std::string man_page(std::string_view name);

// Returns --print-completion's script for "bash", "zsh", "fish" or "tcsh", which the shell reads;
// empty: another shell. It completes flags and their values before PROGRAM, programs and files as
// PROGRAM, and files after it.
std::string completion_script(std::string_view shell);

// Returns --show-config's text: every option's value and who gave it, in the form of a
// configuration file. Options that nobody gave are comments.
std::string show_config(const OptionValues& values, const Environment& environment,
                        const std::vector<ConfigFile>& files);

}  // namespace ddprun::launcher
