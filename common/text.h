// SPDX-License-Identifier: Apache-2.0
// Puts texts together from parts, and takes them apart. Pure.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <initializer_list>
#include <map>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace ddprun {

// These append a number as a std::ostream writes it.
void append_streamed(std::string& text, long long number);
void append_streamed(std::string& text, unsigned long long number);
void append_streamed(std::string& text, double number);

// Appends a text or a number without a stream, which takes a microsecond to construct; most parts
// are of these kinds. A stream's manipulators have no effect.
template <typename Part>
void append_text(std::string& text, const Part& part) {
  static_assert(!std::is_function_v<Part>, "no std::hex, std::left, …");
  if constexpr (std::is_pointer_v<Part> && std::is_convertible_v<const Part&, std::string_view>) {
    if (part != nullptr) text += part;
  } else if constexpr (std::is_convertible_v<const Part&, std::string_view>) {
    text += std::string_view(part);
  } else if constexpr (std::is_same_v<Part, bool>) {
    text += part ? '1' : '0';
  } else if constexpr (std::is_integral_v<Part> && sizeof(Part) == 1) {
    text += static_cast<char>(part);
  } else if constexpr (std::is_integral_v<Part> && std::is_signed_v<Part>) {
    append_streamed(text, static_cast<long long>(part));
  } else if constexpr (std::is_integral_v<Part>) {
    append_streamed(text, static_cast<unsigned long long>(part));
  } else if constexpr (std::is_same_v<Part, double> || std::is_same_v<Part, float>) {
    append_streamed(text, static_cast<double>(part));
  } else {
    std::ostringstream out;
    out << part;
    text += out.str();
  }
}

// "a" + 1 + "b" → "a1b", for messages.
template <typename... Parts>
std::string concat(const Parts&... parts) {
  std::string text;
  (append_text(text, parts), ...);
  return text;
}

// Returns the parts with `separator` between them, each as `text_of` returns it.
template <typename Parts, typename TextOf = std::identity>
std::string listed(const Parts& parts, std::string_view separator = ", ", TextOf text_of = {}) {
  std::string text;
  std::string_view before;
  for (const auto& part : parts) {
    text += before;
    append_text(text, std::invoke(text_of, part));
    before = separator;
  }
  return text;
}

// Returns "a, b and 3 more": the first `most` of the parts, and how many are left.
template <typename Part, typename TextOf = std::identity>
std::string first_listed(const std::vector<Part>& parts, std::size_t most, TextOf text_of = {},
                         std::string_view separator = ", ") {
  if (parts.size() <= most) return listed(parts, separator, text_of);
  return concat(listed(std::span(parts).first(most), separator, text_of), " and ",
                parts.size() - most, " more");
}

inline bool ends_with_any(std::string_view text, std::initializer_list<std::string_view> ends) {
  return std::any_of(ends.begin(), ends.end(), [&](auto end) { return text.ends_with(end); });
}

// These know the case of ASCII letters alone, whatever the locale.
constexpr char ascii_lower(char letter) {
  return letter >= 'A' && letter <= 'Z' ? static_cast<char>(letter - 'A' + 'a') : letter;
}

inline bool equals_ignoring_case(std::string_view a, std::string_view b) {
  return std::ranges::equal(a, b, {}, ascii_lower, ascii_lower);
}

// Returns `text` without the blanks and tabs at its ends.
inline std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

// Takes the part before the first character of `ends`, and drops that character. If there is none,
// takes all.
inline std::string_view take_until(std::string_view& text, std::string_view ends) {
  const std::string_view part = text.substr(0, text.find_first_of(ends));
  text.remove_prefix(std::min(part.size() + 1, text.size()));
  return part;
}

// Returns all parts, also empty ones: one more than there are separators.
std::vector<std::string_view> parts_between(std::string_view text, char separator);
// Returns the parts between characters of `separators`, without empty ones.
std::vector<std::string> filled_parts(std::string_view text, std::string_view separators);

// Returns "1 node", "2 nodes". `number` is an integer, or a text such as "1:2", which is several.
template <typename Number>
std::string counted(const Number& number, std::string_view one) {
  std::string text = concat(number, " ", one);
  return text.starts_with("1 ") ? text : text + "s";
}

// Returns `text` as one line. Line breaks, other controls, and characters that hide or turn the
// text around them become \n, \x1b, \u202e, … A peer's text must not forge lines of a log.
std::string one_line(std::string_view text);

enum class DoubleDollar { kBecomesOne, kStays };

// Works as string.Template(text).safe_substitute(values): "$name" and "${name}" become the value. A
// name without a value stays as it is. A "$$" becomes "$" unless it is to stay, and in neither case
// begins a name. Any other "$" stays.
std::string safe_substitute(std::string_view text, const std::map<std::string, std::string>& values,
                            DoubleDollar dollars = DoubleDollar::kBecomesOne);

}  // namespace ddprun
