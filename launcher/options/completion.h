// SPDX-License-Identifier: Apache-2.0
// What a shell needs to complete ddprun's command lines: flags and their values before PROGRAM,
// programs and files there, files after it. Made from the table of options. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "launcher/options/option.h"

namespace ddprun::launcher {

// The script for "bash", "zsh", "fish" or "tcsh", to be read by the shell; empty: another shell.
std::string completion_script(std::string_view shell);

// Words that an option's value may be: "N|auto|gpu" → auto, gpu.
std::vector<std::string> value_words(const Option& option);

}  // namespace ddprun::launcher
