// SPDX-License-Identifier: Apache-2.0
#include "common/nodelist.h"

#include <algorithm>

#include "common/parsed_number.h"
#include "common/text.h"

namespace ddprun {
namespace {

constexpr std::size_t kMostHosts = 100'000;
// Longer texts are no host's, and take much memory in a hundred thousand copies.
constexpr std::size_t kMostNameBytes = 1024, kMostDigits = 20;

// Expands "01-03" to 01, 02, 03 (as wide as its first number), and "7" to 7. False: it is no range,
// or there are too many in all.
bool expand_range(std::string_view range, std::vector<std::string>& out) {
  const std::size_t dash = range.find('-');
  const std::string_view low_text = range.substr(0, dash);
  const auto low = parsed_number<unsigned long>(low_text);
  const auto high =
      dash == std::string_view::npos ? low : parsed_number<unsigned long>(range.substr(dash + 1));
  if (!low || !high || *high < *low || low_text.size() > kMostDigits) return false;
  const unsigned long num_more = *high - *low;  // the last one may be the largest of its type
  if (num_more >= kMostHosts - out.size()) return false;
  for (unsigned long i = 0; i <= num_more; ++i) {
    std::string digits = std::to_string(*low + i);
    if (digits.size() < low_text.size()) digits.insert(0, low_text.size() - digits.size(), '0');
    out.push_back(std::move(digits));
  }
  return true;
}

// Expands the inside of one bracket: "01-03,7".
bool expand_bracket(std::string_view inside, std::vector<std::string>& out) {
  for (const std::string_view range : parts_between(inside, ',')) {
    if (!expand_range(range, out)) return false;
  }
  return true;
}

// Expands one name with any number of brackets: "rack[1-2]n[01-04]".
bool expand_name(std::string_view name, std::vector<std::string>& out) {
  std::vector<std::string> names{""};
  while (!name.empty()) {
    const std::size_t open = name.find('[');
    if (names.front().size() + std::min(open, name.size()) > kMostNameBytes) return false;
    for (std::string& prefix : names) prefix += name.substr(0, open);
    if (open == std::string_view::npos) break;
    const std::size_t close = name.find(']', open);
    std::vector<std::string> numbers;
    if (close == std::string_view::npos ||
        !expand_bracket(name.substr(open + 1, close - open - 1), numbers) ||
        names.size() * numbers.size() > kMostHosts) {
      return false;
    }
    std::vector<std::string> longer;
    for (const std::string& prefix : names) {
      for (const std::string& digits : numbers) longer.push_back(prefix + digits);
    }
    names = std::move(longer);
    name.remove_prefix(close + 1);
  }
  out.insert(out.end(), names.begin(), names.end());
  return out.size() <= kMostHosts;
}

}  // namespace

std::optional<std::vector<std::string>> expand_nodelist(std::string_view text) {
  std::vector<std::string> hosts;
  std::size_t begin = 0;
  int depth = 0;
  for (std::size_t i = 0; i <= text.size(); ++i) {
    const char letter = i < text.size() ? text[i] : ',';
    if (letter == '[') ++depth;
    if (letter == ']') --depth;
    if (depth < 0 || depth > 1 || letter == ' ') return std::nullopt;
    if (letter != ',' || (depth > 0 && i < text.size())) continue;
    if (depth > 0 || i == begin || !expand_name(text.substr(begin, i - begin), hosts)) {
      return std::nullopt;
    }
    begin = i + 1;
  }
  return hosts;
}

}  // namespace ddprun
