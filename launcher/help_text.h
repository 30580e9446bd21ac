// SPDX-License-Identifier: Apache-2.0
// What `ddprun --help` says around and between its flags. For cli.cc.
#pragma once

#include <memory>

namespace CLI {
class FormatterBase;
}

namespace ddprun::launcher {

extern const char kHelpBegin[];  // examples
extern const char kHelpEnd[];    // exit status

// Shows one spelling of each flag, and no "Needs:"-style decoration.
std::shared_ptr<CLI::FormatterBase> one_spelling_formatter();

}  // namespace ddprun::launcher
