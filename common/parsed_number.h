// SPDX-License-Identifier: Apache-2.0
// Parses a text that is a number, or begins with one. Pure.
#pragma once

#include <charconv>
#include <cstddef>
#include <optional>
#include <string_view>
#include <system_error>

namespace ddprun {

// Takes the number at the beginning of `text` off it. nullopt, and `text` stays as it is: there is
// none, or one that Number can't hold. `base` is the base of a whole number, if it isn't 10.
template <typename Number, typename... Base>
std::optional<Number> take_number(std::string_view& text, Base... base) {
  Number number{};
  const auto [stop, error] =
      std::from_chars(text.data(), text.data() + text.size(), number, base...);
  if (error != std::errc()) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(stop - text.data()));
  return number;
}

// The same for a text that is a number and nothing else. nullopt: it isn't.
template <typename Number, typename... Base>
std::optional<Number> parsed_number(std::string_view text, Base... base) {
  const auto number = take_number<Number>(text, base...);
  return text.empty() ? number : std::nullopt;
}

// The same for a number from `least` to `most`.
template <typename Number>
std::optional<Number> number_within(std::string_view text, Number least, Number most) {
  const auto number = parsed_number<Number>(text);
  return number && *number >= least && *number <= most ? number : std::nullopt;
}

}  // namespace ddprun
