// SPDX-License-Identifier: Apache-2.0
#include "common/toml_keys.h"

#include <algorithm>
#include <string>

namespace ddprun {
namespace {

bool is_bare(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '-';
}

// Returns the end of the string at `at`: after its closing quotes, or at the end of its line or of
// the text.
std::size_t behind_string(std::string_view text, std::size_t at) {
  const char quote = text[at];
  const std::string three(3, quote);
  const bool is_long = text.substr(at).starts_with(three);
  for (at += is_long ? 3 : 1; at < text.size(); ++at) {
    if (text[at] == '\\' && quote == '"') {
      ++at;
    } else if (is_long ? text.substr(at).starts_with(three) : text[at] == quote) {
      return at + (is_long ? 3 : 1);
    } else if (!is_long && text[at] == '\n') {
      return at;
    }
  }
  return text.size();
}

}  // namespace

std::optional<std::size_t> find_long_key(std::string_view text) {
  std::size_t begin = 0;
  int num_parts = 0;
  bool after_dot = false;
  for (std::size_t at = 0; at < text.size();) {
    const char c = text[at];
    if (c == '.') {
      after_dot = true;
      ++at;
    } else if (is_bare(c) || c == '"' || c == '\'') {
      if (!after_dot) {
        num_parts = 0;
        begin = at;
      }
      if (++num_parts > kMostKeyParts) return begin;
      after_dot = false;
      if (!is_bare(c)) {
        at = behind_string(text, at);
      } else {
        while (at < text.size() && is_bare(text[at])) ++at;
      }
    } else {
      if (c == '#') at = std::min(text.find('\n', at), text.size() - 1);
      if (c != ' ' && c != '\t') after_dot = false;
      ++at;
    }
  }
  return std::nullopt;
}

}  // namespace ddprun
