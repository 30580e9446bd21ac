// SPDX-License-Identifier: Apache-2.0
#include "agent/output/line_prefix.h"

#include <array>
#include <cstddef>
#include <utility>

#include "common/wall_time.h"

namespace ddprun::agent {
namespace {

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_name_character(char c) { return is_letter(c) || (c >= '0' && c <= '9'); }

// Returns the length of the identifier at the beginning of `text`.
std::size_t name_length(std::string_view text) {
  if (text.empty() || !is_letter(text.front())) return 0;
  std::size_t length = 1;
  while (length < text.size() && is_name_character(text[length])) ++length;
  return length;
}

}  // namespace

LinePrefix::LinePrefix(std::string_view text) {
  while (!text.empty()) {
    const std::size_t dollar = text.find('$');
    add_text(text.substr(0, dollar));
    if (dollar == std::string_view::npos) return;
    text.remove_prefix(dollar);
    const std::string_view after = text.substr(1);
    const bool in_braces = after.starts_with('{');
    const std::size_t length = name_length(after.substr(in_braces ? 1 : 0));
    std::size_t used = 1;
    if (after.starts_with('$')) {
      add_text("$");
      used = 2;
    } else if (length > 0 && !in_braces) {
      used = 1 + length;
      add(after.substr(0, length), text.substr(0, used));
    } else if (length > 0 && after.size() > length + 1 && after[length + 1] == '}') {
      used = length + 3;
      add(after.substr(1, length), text.substr(0, used));
    } else {
      add_text("$");
    }
    text.remove_prefix(used);
  }
}

void LinePrefix::add_text(std::string_view text) {
  if (text.empty()) return;
  if (parts_.empty() || parts_.back().macro != Macro::kText) parts_.push_back({Macro::kText, ""});
  parts_.back().text += text;
}

void LinePrefix::add(std::string_view name, std::string_view as_written) {
  constexpr std::array<std::pair<std::string_view, Macro>, 6> kMacros = {{
      {"role_name", Macro::kRoleName},
      {"local_rank", Macro::kLocalRank},
      {"rank", Macro::kRank},
      {"hostname", Macro::kHostname},
      {"node_rank", Macro::kNodeRank},
      {"time", Macro::kTime},
  }};
  for (const auto& [known, macro] : kMacros) {
    if (known != name) continue;
    parts_.push_back({macro, ""});
    has_time_ |= macro == Macro::kTime;
    return;
  }
  add_text(as_written);
}

std::string LinePrefix::text(const PrefixValues& values, std::time_t now) const {
  const auto rank_text = [](int rank) { return rank < 0 ? "spare" : std::to_string(rank); };
  std::string result;
  for (const Part& part : parts_) {
    switch (part.macro) {
      case Macro::kText:
        result += part.text;
        break;
      case Macro::kRoleName:
        result += values.role_name;
        break;
      case Macro::kLocalRank:
        result += std::to_string(values.local_rank);
        break;
      case Macro::kRank:
        result += rank_text(values.rank);
        break;
      case Macro::kHostname:
        result += values.hostname;
        break;
      case Macro::kNodeRank:
        result += rank_text(values.node_rank);
        break;
      case Macro::kTime:
        result += local_time_text(now);
        break;
    }
  }
  return result;
}

std::string LinePrefix::coloured(const std::string& text, int rank) {
  // These colours are legible on both light and dark. Red is left out: it looks like an error.
  constexpr std::array<const char*, 6> kColours = {"36", "33", "35", "32", "34", "96"};
  if (text.empty() || rank < 0) return text;
  return std::string("\x1b[") + kColours[static_cast<std::size_t>(rank) % kColours.size()] + "m" +
         text + "\x1b[0m";
}

}  // namespace ddprun::agent
