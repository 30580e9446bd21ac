// SPDX-License-Identifier: Apache-2.0
// A flag's number that has bounds.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace ddprun::ctl {

// CLI::Range takes "nan", which is neither below nor above.
inline CLI::Validator number_between(double least, double most) {
  const auto refuse_nan = [](std::string& text) {
    double value = 0;
    const bool is_nan = CLI::detail::lexical_cast(text, value) && value != value;
    return is_nan ? "Value " + text + " is no number" : std::string();
  };
  return CLI::Range(least, most) & CLI::Validator(refuse_nan, "");
}

}  // namespace ddprun::ctl
