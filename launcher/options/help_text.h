// SPDX-License-Identifier: Apache-2.0
// What --help and --version print. Pure.
#pragma once

#include <string>

namespace ddprun::launcher {

std::string help_text();
// Command lines, each with what it does.
std::string help_examples();
std::string version_text();

}  // namespace ddprun::launcher
