// SPDX-License-Identifier: Apache-2.0
// The names of HangAction: on the command line, in messages, in what people are told. Pure.
#pragma once

#include <optional>
#include <string_view>

#include "rendezvous/membership/messages.h"

namespace ddprun::membership {

const char* to_string(HangAction action);  // "default", "restart", "report", "off"
std::optional<HangAction> hang_action_named(std::string_view name);

}  // namespace ddprun::membership
