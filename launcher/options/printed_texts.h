// SPDX-License-Identifier: Apache-2.0
// Texts that are printed in place of a job, made from the table of options. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/environment.h"
#include "launcher/config_file.h"
#include "launcher/options/option_values.h"

namespace ddprun::launcher {

// --help, -h (one screen) and --version.
std::string help_text();
std::string short_help_text();
std::string version_text();

// --print-man: of "ddprun" or "ddprun.toml", in roff; empty: another page.
std::string man_page(std::string_view name);

// --print-completion: what a shell needs to complete flags and their values before PROGRAM,
// programs and files there, files after it. For "bash", "zsh", "fish" or "tcsh", to be read by the
// shell; empty: another shell.
std::string completion_script(std::string_view shell);

// --show-config: every option's value and who gave it, as a configuration file has it. Options that
// nobody gave stand there as comments.
std::string show_config(const OptionValues& values, const Environment& environment,
                        const std::vector<ConfigFile>& files);

}  // namespace ddprun::launcher
