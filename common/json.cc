// SPDX-License-Identifier: Apache-2.0
#include "common/json.h"

#include <algorithm>
#include <array>
#include <boost/json/array.hpp>
#include <boost/json/basic_parser_impl.hpp>
#include <boost/json/parse_options.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/value_stack.hpp>
#include <boost/system/system_error.hpp>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <limits>
#include <span>
#include <string_view>
#include <utility>

#include "common/error.h"
#include "common/text.h"
#include "common/utf8.h"

namespace ddprun {
namespace {

constexpr std::int64_t kMaxMilliseconds = std::int64_t{1000} * 24 * 3600 * 1000;
constexpr std::size_t kEllipsisBytes = 3;
constexpr std::size_t kStackBytes = 4096;  // the same size as in Boost's own parser

// Builds the value as the handler of Boost's own parser does, but within max_object_size.
struct ValueBuilder {
  explicit ValueBuilder(std::span<unsigned char> buffer)
      : values({}, buffer.data(), buffer.size()) {}

  using Text = boost::json::string_view;
  using Code = boost::json::error_code;

  static constexpr std::size_t max_object_size = kMostJsonMembers;
  static constexpr std::size_t max_array_size = boost::json::array::max_size();
  static constexpr std::size_t max_key_size = boost::json::string::max_size();
  static constexpr std::size_t max_string_size = boost::json::string::max_size();

  bool on_document_begin(Code&) { return true; }
  bool on_document_end(Code&) { return true; }
  bool on_object_begin(Code&) { return true; }
  bool on_object_end(std::size_t size, Code&) { return values.push_object(size), true; }
  bool on_array_begin(Code&) { return true; }
  bool on_array_end(std::size_t size, Code&) { return values.push_array(size), true; }
  bool on_key_part(Text part, std::size_t, Code&) { return values.push_chars(part), true; }
  bool on_key(Text rest, std::size_t, Code&) { return values.push_key(rest), true; }
  bool on_string_part(Text part, std::size_t, Code&) { return values.push_chars(part), true; }
  bool on_string(Text rest, std::size_t, Code&) { return values.push_string(rest), true; }
  bool on_number_part(Text, Code&) { return true; }
  bool on_int64(std::int64_t number, Text, Code&) { return values.push_int64(number), true; }
  bool on_uint64(std::uint64_t number, Text, Code&) { return values.push_uint64(number), true; }
  bool on_double(double number, Text, Code&) { return values.push_double(number), true; }
  bool on_bool(bool value, Code&) { return values.push_bool(value), true; }
  bool on_null(Code&) { return values.push_null(), true; }
  bool on_comment_part(Text, Code&) { return true; }
  bool on_comment(Text, Code&) { return true; }

  boost::json::value_stack values;
};

// Cuts a text, unless the other side has cut it already.
std::string clip(std::string text, std::size_t max_bytes) {
  if (text.size() <= max_bytes + kEllipsisBytes) return text;
  return clean_utf8(text, max_bytes);
}

// Writes a decimal number; very large and very small ones keep their power of ten.
std::string decimal_text(double number) {
  constexpr double kLeast = 1e-6, kMost = 1e17;
  char digits[64];
  const double size = std::fabs(number);
  const bool is_plain = size == 0 || (size >= kLeast && size < kMost);
  const auto end = is_plain
                       ? std::to_chars(digits, std::end(digits), number, std::chars_format::fixed)
                       : std::to_chars(digits, std::end(digits), number);
  std::string text(digits, end.ptr);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

}  // namespace

boost::json::value parsed_json(std::string_view text, boost::json::error_code& error,
                               std::size_t max_depth, boost::json::storage_ptr memory) {
  boost::json::parse_options options;
  options.max_depth = max_depth;
  std::array<unsigned char, kStackBytes> buffer;
  boost::json::basic_parser<ValueBuilder> parser(options, buffer);
  boost::json::value_stack& values = parser.handler().values;
  values.reset(std::move(memory));
  const std::size_t size = parser.write_some(false, text.data(), text.size(), error);
  if (!error && size < text.size()) error = boost::json::error::extra_data;
  if (error) return nullptr;
  return values.release();
}

boost::json::value parsed_json(std::string_view text) {
  boost::json::error_code error;
  boost::json::value value = parsed_json(text, error);
  if (error) throw Error(ErrorCode::kProtocol, "it is no such JSON: " + json_problem(error));
  return value;
}

boost::json::object parsed_object(std::string_view text) {
  boost::json::value value = parsed_json(text);
  if (!value.is_object()) throw Error(ErrorCode::kProtocol, "it is no JSON object");
  return std::move(value.get_object());
}

std::optional<boost::json::object> parse_object(std::string_view text, std::size_t max_depth) {
  boost::json::error_code error;
  boost::json::value value = parsed_json(text, error, max_depth);
  if (error || !value.is_object()) return std::nullopt;
  return std::move(value.get_object());
}

std::string json_problem(const boost::json::error_code& error) {
  if (error != boost::json::error::object_too_large) return error.message();
  return concat("an object has more than ", kMostJsonMembers, " members");
}

std::string json_trouble(const std::exception& error) {
  if (const auto* own = dynamic_cast<const Error*>(&error)) return own->what();
  const auto* of_library = dynamic_cast<const boost::system::system_error*>(&error);
  if (of_library != nullptr)
    return concat("it is no such JSON: ", json_problem(of_library->code()));
  return "a field is missing, or of another kind";
}

JsonFields::JsonFields(const boost::json::object& object, std::string where)
    : object_(object), where_(std::move(where)) {}

void JsonFields::fail(std::string_view name, const std::string& what) const {
  throw Error(ErrorCode::kProtocol, concat(where_, ": \"", name, "\" ", what));
}

const boost::json::value& JsonFields::at(std::string_view name) const {
  const auto* value = object_.if_contains(name);
  if (value == nullptr) fail(name, "is missing");
  return *value;
}

bool JsonFields::has(std::string_view name) const {
  const auto* value = object_.if_contains(name);
  return value != nullptr && !value->is_null();
}

std::int64_t JsonFields::integer(std::string_view name, std::int64_t min, std::int64_t max) const {
  const auto& value = at(name);
  const auto* number = value.if_int64();
  if (number == nullptr) fail(name, "is not an integer in range");
  if (*number < min || *number > max) {
    fail(name, concat("is ", *number, ", not in ", min, " to ", max));
  }
  return *number;
}

std::uint64_t JsonFields::counter(std::string_view name) const {
  return static_cast<std::uint64_t>(integer(name, 0, std::numeric_limits<std::int64_t>::max()));
}

std::chrono::milliseconds JsonFields::time(std::string_view name) const {
  return std::chrono::milliseconds(integer(name, 0, kMaxMilliseconds));
}

double JsonFields::real(std::string_view name) const {
  const boost::json::value& value = at(name);
  if (!value.is_number()) fail(name, "is not a number");
  const double number = value.to_number<double>();
  if (!std::isfinite(number)) fail(name, "is not a finite number");
  return number;
}

bool JsonFields::boolean(std::string_view name) const {
  const auto* value = at(name).if_bool();
  if (value == nullptr) fail(name, "is not true or false");
  return *value;
}

std::string JsonFields::text(std::string_view name) const {
  const auto* value = at(name).if_string();
  if (value == nullptr) fail(name, "is not a string");
  if (value->size() > kMaxTextBytes) fail(name, concat("is longer than ", kMaxTextBytes, " bytes"));
  return std::string(value->data(), value->size());
}

std::string JsonFields::clipped(std::string_view name, std::size_t max_bytes) const {
  return clip(text(name), max_bytes);
}

std::vector<std::string> JsonFields::texts(std::string_view name, std::size_t max_count,
                                           std::size_t max_bytes) const {
  const auto* array = at(name).if_array();
  if (array == nullptr) fail(name, "is not an array");
  if (array->size() > max_count) fail(name, concat("has more than ", max_count, " elements"));
  std::vector<std::string> result;
  for (const auto& element : *array) {
    const auto* value = element.if_string();
    if (value == nullptr) fail(name, "has an element that is not a string");
    if (value->size() > kMaxTextBytes) fail(name, "has an element that is too long");
    result.push_back(clip(std::string(value->data(), value->size()), max_bytes));
  }
  return result;
}

// Doesn't use concat(), to be fast: it is called for each object, and its result is rarely needed.
std::string JsonFields::where_of(std::string_view name) const {
  return std::string(where_).append(": ").append(name);
}

JsonFields JsonFields::object(std::string_view name) const {
  const auto* value = at(name).if_object();
  if (value == nullptr) fail(name, "is not an object");
  return JsonFields(*value, where_of(name));
}

std::vector<JsonFields> JsonFields::objects(std::string_view name, std::size_t max_count) const {
  const auto* array = at(name).if_array();
  if (array == nullptr) fail(name, "is not an array");
  if (array->size() > max_count) fail(name, concat("has more than ", max_count, " elements"));
  std::vector<JsonFields> result;
  result.reserve(array->size());
  const std::string where = where_of(name);
  for (const auto& element : *array) {
    const auto* value = element.if_object();
    if (value == nullptr) fail(name, "has an element that is not an object");
    result.emplace_back(*value, where);
  }
  return result;
}

std::int64_t time_value(std::chrono::milliseconds time) {
  return std::clamp<std::int64_t>(time.count(), 0, kMaxMilliseconds);
}

std::int64_t counter_value(std::uint64_t value) {
  constexpr auto kMax = std::numeric_limits<std::int64_t>::max();
  return value > static_cast<std::uint64_t>(kMax) ? kMax : static_cast<std::int64_t>(value);
}

std::string clean_utf8(std::string_view text, std::size_t max_bytes) {
  std::string clean;
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    if (clean.size() + std::max<std::size_t>(length, 3) > max_bytes) {
      clean += "…";
      break;
    }
    if (length == 0) {
      clean += kReplacementCharacter;
      text.remove_prefix(1);
    } else {
      clean += text.substr(0, length);
      text.remove_prefix(length);
    }
  }
  return clean;
}

boost::json::string clean_text(std::string_view text, std::size_t max_bytes) {
  const std::string clean = clean_utf8(text, max_bytes);
  return boost::json::string(clean);
}

boost::json::string line_text(std::string_view text, std::size_t max_bytes) {
  std::string clean = clean_utf8(text, max_bytes);
  for (char& letter : clean) {
    if (static_cast<unsigned char>(letter) < ' ' || letter == 0x7f) letter = ' ';
  }
  return boost::json::string(clean);
}

boost::json::string shown_line(std::string_view text) {
  return clean_text(one_line(text), std::numeric_limits<std::size_t>::max());
}

std::string written_json(const boost::json::value& value) {
  const std::string text = boost::json::serialize(value);
  std::string result;
  result.reserve(text.size());
  std::size_t copied = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '"') {
      while (text[++i] != '"') i += text[i] == '\\' ? 1 : 0;
      // Boost writes an E in each double, and nowhere else outside strings.
    } else if (text[i] == 'E') {
      const std::size_t begin = text.find_last_of("[{,:", i) + 1;
      double number = 0;
      const auto end = std::from_chars(text.data() + begin, text.data() + text.size(), number);
      result.append(text, copied, begin - copied).append(decimal_text(number));
      copied = static_cast<std::size_t>(end.ptr - text.data());
      i = copied - 1;
    }
  }
  return shown_json(std::move(result.append(text, copied)));
}

std::string shown_json(std::string json) {
  constexpr unsigned char kDel = 0x7f;
  const auto first = std::find_if(json.begin(), json.end(), [](char letter) {
    return static_cast<unsigned char>(letter) >= kDel;
  });
  if (first == json.end()) return json;  // nearly all texts end here
  std::string_view rest(json);
  rest.remove_prefix(static_cast<std::size_t>(first - json.begin()));
  std::string result(json.begin(), first);
  while (!rest.empty()) {
    const std::size_t length = utf8_length(rest);
    const char32_t code = length == 0 ? 0 : utf8_code(rest);
    const std::size_t taken = std::max<std::size_t>(length, 1);  // also a byte of no character
    if (code == kDel || is_hidden(code)) {
      result += escaped_code(code);
    } else {
      result += rest.substr(0, taken);
    }
    rest.remove_prefix(taken);
  }
  return result;
}

}  // namespace ddprun
