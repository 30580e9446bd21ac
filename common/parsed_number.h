// SPDX-License-Identifier: Apache-2.0
// Parses a text that is a number and nothing else. Pure.
#pragma once

#include <charconv>
#include <optional>
#include <string_view>
#include <system_error>

namespace ddprun {

// nullopt: `text` is no number, or one that Number can't hold. `base` is the base of a whole
// number, if it isn't 10.
template <typename Number, typename... Base>
std::optional<Number> parsed_number(std::string_view text, Base... base) {
  Number number{};
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number, base...);
  return error == std::errc() && stop == end ? std::optional(number) : std::nullopt;
}

}  // namespace ddprun
