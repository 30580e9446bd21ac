// SPDX-License-Identifier: Apache-2.0
// What is wrong with JSON that somebody else wrote, in words for people.
#pragma once

#include <exception>
#include <string>

namespace ddprun {

// Of an Error its own words; of what the JSON library threw what it is about, without where in the
// library's source that was; of all else that something is missing, or of another kind.
std::string json_trouble(const std::exception& error);

}  // namespace ddprun
