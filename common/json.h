// SPDX-License-Identifier: Apache-2.0
// Reads and writes JSON, on top of Boost.JSON. The worker SDK, which needs no Boost, writes its few
// lines with json_text(). Pure.
#pragma once

#include <algorithm>
#include <boost/json/error.hpp>
#include <boost/json/object.hpp>
#include <boost/json/storage_ptr.hpp>
#include <boost/json/string.hpp>
#include <boost/json/value.hpp>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun {

// The limit of texts for people: the text of one agent goes to all others.
inline constexpr std::size_t kMaxShownBytes = 4096;

// An object with more members is refused before it is built. The hash of Boost's objects is
// predictable, so a sender could choose keys that all collide. ddprun's largest objects have a
// tenth of that.
inline constexpr std::size_t kMostJsonMembers = 1000;
inline constexpr std::size_t kMostJsonDepth = 32;

// These parse all JSON that others have written. If a key occurs twice, its last member counts.
// `error` is set if the text is no JSON, is deeper than `max_depth` or has too many members; then
// null is returned. `memory` outlives the value.
boost::json::value parsed_json(std::string_view text, boost::json::error_code& error,
                               std::size_t max_depth = kMostJsonDepth,
                               boost::json::storage_ptr memory = {});
// Does the same, but throws Error(kProtocol) with json_problem().
boost::json::value parsed_json(std::string_view text);
// Does the same, and accepts only an object.
boost::json::object parsed_object(std::string_view text);
// nullopt: the text is no such JSON, or no object.
std::optional<boost::json::object> parse_object(std::string_view text,
                                                std::size_t max_depth = kMostJsonDepth);

// Returns what is wrong, without the place in the library's code.
std::string json_problem(const boost::json::error_code& error);

// Tells people what is wrong with JSON that somebody else wrote. An Error has its own text. An
// exception of the JSON library has its message, without the place in the library's code. Any other
// exception: a field is missing or of another type.
std::string json_trouble(const std::exception& error);

// Every getter throws Error(kProtocol) that names the field if it is missing, of another type, or
// out of range.
class JsonFields {
 public:
  static constexpr std::size_t kMaxTextBytes = 64 << 10;  // of one string; a longer one is an error

  // `where` begins every error: "message \"join\"". The object must outlive this.
  JsonFields(const boost::json::object& object, std::string where);

  bool has(std::string_view name) const;  // present and not null
  std::int64_t integer(std::string_view name, std::int64_t min, std::int64_t max) const;
  std::uint64_t counter(std::string_view name) const;  // 0 … 2^63 − 1
  int small(std::string_view name, int min, int max) const {
    return static_cast<int>(integer(name, min, max));
  }
  std::uint16_t port(std::string_view name) const {
    return static_cast<std::uint16_t>(integer(name, 0, 65535));
  }
  std::chrono::milliseconds time(std::string_view name) const;  // "…_ms"; up to 1,000 days
  double real(std::string_view name) const;                     // finite
  bool boolean(std::string_view name) const;
  std::string text(std::string_view name) const;
  // For people only: the text is cut to about `max_bytes`, see clean_utf8().
  std::string clipped(std::string_view name, std::size_t max_bytes) const;
  // Each text is cut in the same way.
  std::vector<std::string> texts(std::string_view name, std::size_t max_count,
                                 std::size_t max_bytes) const;
  JsonFields object(std::string_view name) const;
  std::vector<JsonFields> objects(std::string_view name, std::size_t max_count) const;

 private:
  [[noreturn]] void fail(std::string_view name, const std::string& what) const;
  const boost::json::value& at(std::string_view name) const;
  std::string where_of(std::string_view name) const;

  const boost::json::object& object_;
  std::string where_;
};

// These return JSON integers that the getters accept: a value out of their range becomes its limit.
std::int64_t time_value(std::chrono::milliseconds time);
std::int64_t counter_value(std::uint64_t value);

// Returns `text` with U+FFFD for each byte that isn't part of valid UTF-8. Text beyond `max_bytes`
// is cut off and "…" is appended, so the result has up to 3 bytes more.
std::string clean_utf8(std::string_view text, std::size_t max_bytes);
boost::json::string clean_text(std::string_view text, std::size_t max_bytes = kMaxShownBytes);
// Does the same, with spaces for control characters: JSON needs six bytes for one of those.
boost::json::string line_text(std::string_view text, std::size_t max_bytes);

// Returns `text` as log.h's one_line() makes it.
boost::json::string shown_line(std::string_view text);

// ---- JSON that ddprun prints, or writes to files ----

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

// Finds values in JSON that anybody may have written. The keys lead to them, outermost first. A
// value that is missing or of another type is null, empty, 0 or nullopt.
namespace json_at {

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

}  // namespace json_at

}  // namespace ddprun
