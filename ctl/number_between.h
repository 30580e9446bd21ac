// SPDX-License-Identifier: Apache-2.0
// A check of a flag's number against two bounds.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace ddprun::ctl {

// Also refuses "nan", which CLI::Range takes, since "nan" is neither below nor above a bound.
inline CLI::Validator number_between(double least, double most) {
  const auto refuse_nan = [](std::string& text) {
    double value = 0;
    const bool is_nan = CLI::detail::lexical_cast(text, value) && value != value;
    return is_nan ? "Value " + text + " is no number" : std::string();
  };
  return CLI::Range(least, most) & CLI::Validator(refuse_nan, "");
}

}  // namespace ddprun::ctl
