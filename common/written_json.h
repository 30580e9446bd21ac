// SPDX-License-Identifier: Apache-2.0
// JSON for people, files and scripts. Pure.
#pragma once

#include <boost/json/value.hpp>
#include <optional>
#include <string>

namespace ddprun {

// null: there is none.
template <typename Value>
boost::json::value or_null(const std::optional<Value>& value) {
  return value ? boost::json::value(*value) : boost::json::value(nullptr);
}

// `value` as text, as boost::json::serialize() has it, but with numbers as people write them:
// 0.001, not 1E-3. A decimal number that is whole keeps a digit after its point. As shown_json().
std::string written_json(const boost::json::value& value);

// The same JSON, with \u202e in place of a character that hides or turns the text around it
// (utf8.h: is_hidden()), and of DEL. Terminals obey such characters, and others chose the strings.
std::string shown_json(std::string json);

}  // namespace ddprun
