// SPDX-License-Identifier: Apache-2.0
// One alternative of a variant of messages, found by its name. Pure.
#pragma once

#include <cstddef>
#include <utility>

#include "common/variant.h"

namespace ddprun::membership {

// Makes `message` the first of its alternatives that take(candidate) returns true for; false: none.
template <typename Message, typename Take, std::size_t Index = 0>
bool get_by_name(Message& message, const Take& take) {
  if constexpr (Index == variants::variant_size_v<Message>) {
    return false;
  } else {
    variants::variant_alternative_t<Index, Message> candidate;
    if (!take(candidate)) return get_by_name<Message, Take, Index + 1>(message, take);
    message = std::move(candidate);
    return true;
  }
}

}  // namespace ddprun::membership
