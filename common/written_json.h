// SPDX-License-Identifier: Apache-2.0
// Writes JSON for people, files and scripts. Pure.
#pragma once

#include <boost/json/value.hpp>
#include <optional>
#include <string>

namespace ddprun {

// Returns the value, or null if there is none.
template <typename Value>
boost::json::value or_null(const std::optional<Value>& value) {
  return value ? boost::json::value(*value) : boost::json::value(nullptr);
}

// Returns `value` as text, as boost::json::serialize() does, but with numbers as people write them:
// 0.001, not 1E-3. A whole decimal number keeps a digit after its point. Hidden characters are
// escaped as in shown_json().
std::string written_json(const boost::json::value& value);

// Returns the same JSON, with \u202e in place of a character that hides or turns the text around it
// (utf8.h: is_hidden()), and of DEL. Terminals obey such characters, and the strings may be
// others'.
std::string shown_json(std::string json);

}  // namespace ddprun
