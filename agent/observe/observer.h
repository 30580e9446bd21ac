// SPDX-License-Identifier: Apache-2.0
// The observer of plain PyTorch programs (docs/observe.md): a file that Python imports at its
// start.
#pragma once

#include <string>

namespace ddprun::agent {

// Returns its folder for PYTHONPATH, in the directory of a round's socket. Pure.
std::string observer_folder(const std::string& socket_directory);

// Makes the folder, and returns it. If it throws Error(kSystem), nothing is left.
std::string put_observer(const std::string& socket_directory);

}  // namespace ddprun::agent
