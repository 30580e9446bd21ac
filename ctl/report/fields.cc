// SPDX-License-Identifier: Apache-2.0
#include "ctl/report/fields.h"

#include <boost/json/array.hpp>
#include <boost/json/value.hpp>
#include <charconv>
#include <chrono>
#include <cmath>

#include "common/duration.h"
#include "common/log.h"
#include "common/utf8.h"

namespace ddprun::report {

namespace json = boost::json;

namespace {

// More is no reading of anything, and its sums would soon be no numbers.
constexpr double kMostNumber = 1e30;
constexpr double kMostCount = 9'007'199'254'740'992;  // 2^53

// So many digits at the beginning of `text`, which are cut off with the character behind them.
std::optional<int> next_digits(std::string_view& text, std::size_t count, char behind) {
  if (text.size() <= count || text[count] != behind) return std::nullopt;
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + count, value);
  if (error != std::errc() || end != text.data() + count || value < 0) return std::nullopt;
  text.remove_prefix(count + 1);
  return value;
}

}  // namespace

std::string clean_text(std::string_view text, std::size_t most_bytes) {
  std::string clean;
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    const std::string_view letter = text.substr(0, length);
    const std::string shown = length == 0 ? std::string(kReplacementCharacter) : one_line(letter);
    if (clean.size() + shown.size() > most_bytes) return clean + "…";
    clean += shown;
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return clean;
}

const json::object* object_at(const json::object& object, std::string_view name) {
  const json::value* value = object.if_contains(name);
  return value == nullptr ? nullptr : value->if_object();
}

const json::array* array_at(const json::object& object, std::string_view name) {
  const json::value* value = object.if_contains(name);
  return value == nullptr ? nullptr : value->if_array();
}

std::optional<double> number_at(const json::object& object, std::string_view name) {
  const json::value* value = object.if_contains(name);
  if (value == nullptr || !value->is_number()) return std::nullopt;
  const auto number = value->to_number<double>();
  return std::abs(number) <= kMostNumber ? std::optional(number) : std::nullopt;
}

std::optional<std::int64_t> count_at(const json::object& object, std::string_view name) {
  const std::optional<double> number = number_at(object, name);
  if (!number || *number < 0 || *number > kMostCount || *number != std::floor(*number)) return {};
  return static_cast<std::int64_t>(*number);
}

bool flag_at(const json::object& object, std::string_view name) {
  const json::value* value = object.if_contains(name);
  return value != nullptr && value->is_bool() && value->get_bool();
}

std::string text_at(const json::object& object, std::string_view name, std::size_t most_bytes) {
  const json::value* value = object.if_contains(name);
  return value != nullptr && value->is_string() ? clean_text(value->get_string(), most_bytes) : "";
}

std::vector<std::string> texts_at(const json::object& object, std::string_view name,
                                  std::size_t most) {
  std::vector<std::string> texts;
  const json::array* array = array_at(object, name);
  if (array == nullptr) return texts;
  for (const json::value& each : *array) {
    if (texts.size() == most) break;
    if (each.is_string()) texts.push_back(clean_text(each.get_string()));
  }
  return texts;
}

std::optional<double> parse_utc(std::string_view text) {
  const auto year = next_digits(text, 4, '-'), month = next_digits(text, 2, '-');
  const auto day = next_digits(text, 2, 'T'), hour = next_digits(text, 2, ':');
  const auto minute = next_digits(text, 2, ':');
  if (!year || !month || !day || !hour || !minute || !text.ends_with('Z')) return std::nullopt;
  text.remove_suffix(1);
  const std::optional<double> second = parse_decimal(text);
  const std::chrono::year_month_day date{std::chrono::year(*year),
                                         std::chrono::month(static_cast<unsigned>(*month)),
                                         std::chrono::day(static_cast<unsigned>(*day))};
  if (!date.ok() || *hour > 23 || *minute > 59 || !second || *second > 60) return std::nullopt;
  const auto days = std::chrono::sys_days(date).time_since_epoch().count();
  return static_cast<double>(days) * 86'400 + *hour * 3600 + *minute * 60 + *second;
}

}  // namespace ddprun::report
