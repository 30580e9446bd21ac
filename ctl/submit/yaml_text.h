// SPDX-License-Identifier: Apache-2.0
// JSON values as YAML, for people who read manifests. Pure.
#pragma once

#include <boost/json/value.hpp>
#include <string>

namespace ddprun::submit {

// Blocks of two blanks; a text is plain only where no YAML reader, of version 1.1 or 1.2, takes it
// for anything else, and else as JSON has it.
std::string to_yaml(const boost::json::value& value);

}  // namespace ddprun::submit
