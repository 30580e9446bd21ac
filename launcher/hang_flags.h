// SPDX-License-Identifier: Apache-2.0
// The values of --hang-timeout and --hang-action. Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "agent/hang/rank_sample.h"
#include "rendezvous/membership/messages.h"

namespace ddprun::launcher {

// Empty: the default. nullopt: no such action.
std::optional<membership::HangAction> parse_hang_action(std::string_view text);

// "30s", or "step=30s,checkpoint=2h"; units s, m, h, none: seconds. Empty: all is well, and what
// was named is set in `limits`; else the problem.
std::string parse_hang_timeout(std::string_view text, agent::HangLimits& limits);

}  // namespace ddprun::launcher
