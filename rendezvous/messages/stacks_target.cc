// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/messages/stacks_target.h"

#include <algorithm>
#include <cstdint>

#include "common/parsed_number.h"
#include "common/text.h"

namespace ddprun::membership {
namespace {

constexpr std::string_view kJob = "job=", kRanks = "ranks=";

bool is_plain(char letter) {
  return (letter >= '0' && letter <= '9') || (letter >= 'a' && letter <= 'z') ||
         (letter >= 'A' && letter <= 'Z') || letter == '-' || letter == '.' || letter == '_' ||
         letter == ',';
}

// Returns the text percent-encoded, as in RFC 3986.
std::string escaped(std::string_view text) {
  constexpr char kDigits[] = "0123456789ABCDEF";
  std::string all;
  for (const char letter : text) {
    if (is_plain(letter)) {
      all += letter;
    } else {
      const auto byte = static_cast<unsigned char>(letter);
      all += {'%', kDigits[byte >> 4], kDigits[byte & 15]};
    }
  }
  return all;
}

std::optional<std::string> unescaped(std::string_view text) {
  constexpr int kHexadecimal = 16;
  std::string all;
  while (!text.empty()) {
    if (text.front() != '%') {
      all += text.front();
      text.remove_prefix(1);
      continue;
    }
    const auto byte = parsed_number<std::uint8_t>(text.substr(1, 2), kHexadecimal);
    if (text.size() < 3 || !byte) return std::nullopt;
    all += static_cast<char>(*byte);
    text.remove_prefix(3);
  }
  return all;
}

}  // namespace

std::string stacks_target(const StacksTarget& target) {
  return concat(kStacksPath, "?", kJob, escaped(target.run_id),
                target.ranks.empty() ? "" : concat("&", kRanks, escaped(target.ranks)));
}

std::optional<StacksTarget> parse_stacks_target(std::string_view text) {
  if (take_until(text, "?") != kStacksPath) return std::nullopt;
  StacksTarget target;
  while (!text.empty()) {
    const std::string_view part = take_until(text, "&");
    const bool is_job = part.starts_with(kJob);
    if (!is_job && !part.starts_with(kRanks)) return std::nullopt;
    auto value = unescaped(part.substr(is_job ? kJob.size() : kRanks.size()));
    if (!value) return std::nullopt;
    (is_job ? target.run_id : target.ranks) = std::move(*value);
  }
  return target;
}

std::optional<std::vector<int>> parse_rank_list(std::string_view text, int end) {
  std::vector<bool> chosen(static_cast<std::size_t>(std::max(end, 0)));
  if (text.empty() || text.ends_with(',')) return std::nullopt;
  while (!text.empty()) {
    std::string_view part = take_until(text, ",");
    const bool is_range = part.find('-') != part.npos;
    const auto first = parsed_number<int>(take_until(part, "-"));
    const auto last = is_range ? parsed_number<int>(part) : first;
    if (!first || !last || *first < 0 || *last < *first || *last >= end) return std::nullopt;
    std::fill(chosen.begin() + *first, chosen.begin() + *last + 1, true);
  }
  std::vector<int> ranks;
  for (int i = 0; i < end; ++i) {
    if (chosen[static_cast<std::size_t>(i)]) ranks.push_back(i);
  }
  return ranks;
}

}  // namespace ddprun::membership
