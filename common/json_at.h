// SPDX-License-Identifier: Apache-2.0
// Finds values in JSON that anybody may have written. The keys lead to them, outermost first. A
// value that is missing or of another type is null, empty, 0 or nullopt. Pure.
#pragma once

#include <algorithm>
#include <boost/json/value.hpp>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun::json_at {

inline const boost::json::value kNoValue;
inline const boost::json::array kNoList;

inline const boost::json::value& at(const boost::json::value& all) { return all; }

template <typename... Keys>
const boost::json::value& at(const boost::json::value& all, std::string_view key,
                             const Keys&... keys) {
  const boost::json::object* object = all.if_object();
  const boost::json::value* value = object == nullptr ? nullptr : object->if_contains(key);
  return value == nullptr ? kNoValue : at(*value, keys...);
}

template <typename... Keys>
std::string text(const boost::json::value& all, const Keys&... keys) {
  const boost::json::string* value = at(all, keys...).if_string();
  return value == nullptr ? "" : std::string(*value);
}

template <typename... Keys>
const boost::json::array& list(const boost::json::value& all, const Keys&... keys) {
  const boost::json::array* value = at(all, keys...).if_array();
  return value == nullptr ? kNoList : *value;
}

// Returns the strings in a list; other elements are skipped.
template <typename... Keys>
std::vector<std::string> texts(const boost::json::value& all, const Keys&... keys) {
  std::vector<std::string> said;
  for (const boost::json::value& each : list(all, keys...)) {
    if (each.is_string()) said.emplace_back(each.get_string());
  }
  return said;
}

// Returns a finite number.
template <typename... Keys>
std::optional<double> number(const boost::json::value& all, const Keys&... keys) {
  const boost::json::value& value = at(all, keys...);
  const double number = value.is_number() ? value.to_number<double>() : NAN;
  return std::isfinite(number) ? std::optional(number) : std::nullopt;
}

// Returns the number rounded, between −2^40 and 2^40, so that sums of a few can't overflow.
template <typename... Keys>
std::int64_t whole(const boost::json::value& all, const Keys&... keys) {
  constexpr double kMost = 1LL << 40;
  return std::llround(std::clamp(number(all, keys...).value_or(0), -kMost, kMost));
}

}  // namespace ddprun::json_at
