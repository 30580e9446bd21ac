// SPDX-License-Identifier: Apache-2.0
#include "ctl/submit/yaml_text.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <string_view>

namespace ddprun::submit {

namespace json = boost::json;

namespace {

// Words that begin with a letter, of letters, digits and what means nothing inside one; no word
// that YAML 1.1 takes for a truth value or nothing.
bool is_plain(std::string_view text) {
  constexpr std::string_view kOthers =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./";
  constexpr std::string_view kMeant[] = {"y",   "n",    "yes",   "no",  "on",
                                         "off", "true", "false", "null"};
  if (text.empty() || text.find_first_not_of(kOthers) != std::string_view::npos) return false;
  const char first = text.front();
  if (!((first >= 'a' && first <= 'z') || (first >= 'A' && first <= 'Z'))) return false;
  std::string small(text);
  for (char& letter : small) {
    if (letter >= 'A' && letter <= 'Z') letter = static_cast<char>(letter - 'A' + 'a');
  }
  return std::find(std::begin(kMeant), std::end(kMeant), small) == std::end(kMeant);
}

std::string scalar(const json::value& value) {
  if (const json::string* text = value.if_string()) {
    if (is_plain({text->data(), text->size()})) return std::string(*text);
  }
  return json::serialize(value);  // also {} and []
}

bool is_block(const json::value& value) {
  return (value.is_object() && !value.get_object().empty()) ||
         (value.is_array() && !value.get_array().empty());
}

void write(const json::value& value, std::size_t depth, bool is_begun, std::string& out) {
  const std::string indent(depth, ' ');
  const auto begin_line = [&] {
    if (!is_begun) out += indent;
    is_begun = false;
  };
  if (const json::object* object = value.if_object()) {
    for (const auto& [key, each] : *object) {
      begin_line();
      out += scalar(json::value(key)) + ":";
      if (is_block(each)) {
        out += '\n';
        write(each, depth + 2, false, out);
      } else {
        out += " " + scalar(each) + "\n";
      }
    }
  } else if (const json::array* array = value.if_array()) {
    for (const json::value& each : *array) {
      begin_line();
      out += "- ";
      if (is_block(each)) {
        write(each, depth + 2, true, out);
      } else {
        out += scalar(each) + "\n";
      }
    }
  }
}

}  // namespace

std::string to_yaml(const json::value& value) {
  if (!is_block(value)) return scalar(value) + "\n";
  std::string out;
  write(value, 0, false, out);
  return out;
}

}  // namespace ddprun::submit
