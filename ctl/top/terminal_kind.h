// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace ddprun::top {

// Whether the kind of terminal that TERM names is described on this machine (terminfo).
bool is_terminal_described();

}  // namespace ddprun::top
