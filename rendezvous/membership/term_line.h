// SPDX-License-Identifier: Apache-2.0
// How many terms of a line (docs/rendezvous.md, "Terms") are kept and told. Pure.
#pragma once

#include <cstddef>

namespace ddprun::membership {

inline constexpr std::size_t kMaxTermLine = 16;  // older ones are left out

}  // namespace ddprun::membership
