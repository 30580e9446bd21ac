// SPDX-License-Identifier: Apache-2.0
// Where nodes stand to each other. A topology label is a dotted path from the widest switch to the
// narrowest, "pod1.rack7"; nodes of one label are neighbours. Pure.
#pragma once

#include <string_view>

#include "rendezvous/membership/messages.h"

namespace ddprun::membership {

// How many leading parts two labels have in common: 1 for "pod1.rack7" and "pod1.rack8"; 0 where
// one of them is empty.
int shared_levels(std::string_view a, std::string_view b);

// Whether `a` comes before `b` in rank order: by label, then by host name; digits count as numbers
// ("gpu9" before "gpu10"); labelled nodes before the others.
bool stands_before(const Join& a, const Join& b);

}  // namespace ddprun::membership
