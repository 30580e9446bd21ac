// SPDX-License-Identifier: Apache-2.0
// The observer of plain PyTorch programs (docs/observe.md): a file that Python imports at its
// start.
#pragma once

#include <string>

namespace ddprun::agent {

// Makes its folder in the directory of a round's socket. Returns the folder, for PYTHONPATH. Throws
// Error(kSystem), and leaves nothing then.
std::string put_observer(const std::string& socket_directory);

}  // namespace ddprun::agent
