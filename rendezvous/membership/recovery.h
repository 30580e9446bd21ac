// SPDX-License-Identifier: Apache-2.0
// The names of Recovery: on the command line, in messages, in what people are told. Pure.
#pragma once

#include <optional>
#include <string_view>

#include "rendezvous/membership/messages.h"

namespace ddprun::membership {

const char* to_string(Recovery recovery);  // "restart", "inplace"
std::optional<Recovery> recovery_named(std::string_view name);

}  // namespace ddprun::membership
